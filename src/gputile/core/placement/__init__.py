"""Judges whether a pod fits a node, which GPUs suit it, and how good the node is."""
