"""Decides what the node advertises: mode, unit, devices, and what is in the way."""
