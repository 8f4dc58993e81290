"""Checks pods and the parts of their templates."""
