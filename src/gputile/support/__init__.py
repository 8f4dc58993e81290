"""Provides what several components share: configuration file, HTTP, logs, ports, files, YAML."""
