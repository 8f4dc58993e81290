"""Turns a short description of a GPU node pool into each cloud's commands and manifests (G6)."""
