"""Decides for every component: no I/O, no clock, and no randomness that is not passed in."""
