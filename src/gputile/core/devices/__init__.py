"""Describes GPUs: a node's inventory, a pod's request, and the allocation that connects them."""
