"""Keeps the node as its agent knows it: plain data, changed by events."""
