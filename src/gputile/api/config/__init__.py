"""Holds the configuration files, one module for each version."""
