"""Sends requests to an API server, again where that is sound, and bounds its answers."""
