"""Plans gangs, preemption and node requests, taints GPU nodes, and reports silent node agents."""
