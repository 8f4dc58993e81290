"""Reads files, and names the objects in them."""
