"""Plans gangs: which may start, on which nodes, and which GPUs are reserved for them."""
