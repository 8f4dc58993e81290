"""Judges where a pod goes: whether it fits a node, which GPUs suit it, and how good the node is.

Every rule of fit is a scalar function on one node; ``vectorized`` computes the same for many nodes at once, and tests
hold the two equal. Scores are computed on arrays alone.
"""
