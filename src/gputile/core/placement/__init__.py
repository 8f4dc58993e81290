"""Judges whether a pod fits a node, which GPUs suit the pod, and how good the node is."""
