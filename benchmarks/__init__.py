"""Measures the speed of gputile, and compares it with reference values from the same run.

The command is ``python -m benchmarks``.
"""
