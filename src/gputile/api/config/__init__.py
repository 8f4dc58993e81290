"""Defines the configuration file. Each version of the file has one module."""
