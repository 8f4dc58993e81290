"""Talks to the API server: what the agent reads there and writes."""
