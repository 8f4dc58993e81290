"""Writes to the API server: pods, nodes and events."""
