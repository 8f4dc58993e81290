"""What services and commands share beside what they decide: configuration file, HTTP, logs, ports, files, YAML."""
