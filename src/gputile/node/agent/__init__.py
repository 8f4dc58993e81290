"""Runs on each GPU node: reports the node's GPUs, and decides what each container may use of
them.
"""
