"""Repeats the API server's checks of objects."""
