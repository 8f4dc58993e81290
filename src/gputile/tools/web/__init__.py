"""Serves a page of the GPUs as tiles: its records, the server that streams them, and browsers'
code.
"""
