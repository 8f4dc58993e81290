"""Runs the commands, one module each."""
