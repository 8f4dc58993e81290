"""Opinions on where a pod goes: whether it fits, which GPUs of a node, and how good a node is.

Every rule is a scalar function on one node; the arrays' kernels say the same for many nodes at once, and tests
hold the two equal.
"""
