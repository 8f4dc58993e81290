"""Turns a short description of a GPU node pool into the commands and manifests of each cloud
(G6).
"""
