"""Computes device IDs: what there is, what is taken, and which ones to prefer."""
