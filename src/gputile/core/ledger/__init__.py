"""Who holds what: a cache of the allocations that the API server's pods carry, kept by events."""
