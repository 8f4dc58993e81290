"""Measures what pods use of GPUs, by the metrics of agents."""
