"""Keeps one replica of a component active, by a Lease."""
