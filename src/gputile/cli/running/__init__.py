"""Keeps a command running until it is done or interrupted."""
