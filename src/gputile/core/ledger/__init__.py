"""Records which pod holds which GPUs: a cache of the allocations of pods, updated by events."""
