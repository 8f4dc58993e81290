"""Runs on each GPU node: it reports the node's GPUs, and decides what each container may use of them."""
