"""Tells where an API server is, and by which credentials and certificates it is called."""
