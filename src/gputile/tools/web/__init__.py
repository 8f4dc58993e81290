"""Serves a page of the GPUs as tiles: its records, its streaming server, and browsers' code."""
