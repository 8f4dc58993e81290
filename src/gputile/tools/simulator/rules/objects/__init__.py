"""Checks the objects that make no pods, kind by kind."""
