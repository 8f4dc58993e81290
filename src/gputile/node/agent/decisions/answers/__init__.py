"""Describes what a container is given with its devices."""
