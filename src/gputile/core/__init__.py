"""Makes the decisions of all components, without I/O and without a clock.

Random values are passed in. ``placement.fit.choose_gpus`` chooses the GPUs of a node.
"""
