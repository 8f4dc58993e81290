"""Contains the modules of the commands."""
