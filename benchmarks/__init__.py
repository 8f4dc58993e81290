"""Measures how fast gputile is, relative to a baseline of the same run; ``python -m
benchmarks``.
"""
