"""Reads a cluster for a command, within a time limit."""
