"""Versioned configuration files."""
