"""Judges whether a pod fits a node, which GPUs suit it, and how good the node is.

Every rule of fit is a scalar function on one node; ``vectorized`` computes the same for many nodes at once, and tests
check that both agree. Scores are computed on arrays alone.
"""
