"""Describes GPUs: their inventory on a node, a pod's request, and the allocation that connects
both.
"""
