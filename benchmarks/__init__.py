"""Measures how fast gputile is, compared with a reference value of the same run.

The command is ``python -m benchmarks``.
"""
