"""Prints what commands have found, in every format."""
