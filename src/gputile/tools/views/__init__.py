"""Computes the tables and bars that commands print, and the state of the installation."""
