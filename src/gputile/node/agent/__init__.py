"""Contains the agent of a GPU node, which reports the GPUs and sets the limits of containers."""
