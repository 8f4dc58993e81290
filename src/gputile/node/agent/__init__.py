"""Runs on each GPU node: reports its GPUs, and decides what each container may use of them."""
