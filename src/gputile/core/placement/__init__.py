"""Judges where a pod goes: whether it fits a node, which GPUs suit it, and how good the node is.

Every rule is a scalar function on one node; ``vectorized`` computes the same for many nodes at once, and tests hold the
two equal.
"""
