"""What services and commands share and no part of the product decides by: HTTP, logs, ports, files, YAML."""
