"""Decides what the node offers: mode, unit, devices, and what is in the way."""
