"""Provides what services and commands share: configuration file, HTTP server, logs, ports, files, YAML."""
