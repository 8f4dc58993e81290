"""Talks to the API server: connection, reflector, lease, events and the errors they raise."""
