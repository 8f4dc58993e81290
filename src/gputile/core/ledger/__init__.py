"""Records which pod holds which GPUs, as a cache of the allocations in the API server."""
