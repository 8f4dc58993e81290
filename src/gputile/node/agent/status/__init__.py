"""Tells people about the node: conditions, labels, events, metrics and probes."""
