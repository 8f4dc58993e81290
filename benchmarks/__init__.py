"""Benchmarks: how fast gputile is, as ratios to something measured in the same run. ``python -m benchmarks``."""
