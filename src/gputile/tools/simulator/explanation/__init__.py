"""Explains why a pod is on its node, or pending, and what would help."""
