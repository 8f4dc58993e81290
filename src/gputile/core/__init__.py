"""Makes the decisions of all components, without I/O and without a clock.

Callers pass in times and random values. ``placement.fit.choose_gpus`` chooses the GPUs of a node.
"""
