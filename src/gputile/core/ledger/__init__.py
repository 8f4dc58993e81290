"""Keeps which pod holds which GPUs: a cache, kept by events, of the allocations that pods carry."""
