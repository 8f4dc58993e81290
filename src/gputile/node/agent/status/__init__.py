"""What the agent tells people: conditions, labels, events, metrics and probes."""
