"""Talks to the API server: connection, reflector, Lease, events, and the errors of requests."""
