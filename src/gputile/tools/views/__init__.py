"""Computes tables, bars and states of the installation for the command line."""
