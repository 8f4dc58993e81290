"""Gives the node's GPUs by ResourceClaims: offers them, prepares claims and releases them."""
