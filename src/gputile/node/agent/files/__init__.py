"""Keeps files: the checkpoint, and what containers mount."""
