"""Decides what the agent writes on its node, and how containers share time."""
