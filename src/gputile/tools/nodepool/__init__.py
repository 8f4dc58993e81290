"""Turns a description of a GPU node pool into the commands and manifests for its cloud (G6)."""
