"""Sums up what a simulation found, by workload and by reason."""
