"""Provides what services and commands share: configuration file, HTTP, logs, ports, files, YAML."""
