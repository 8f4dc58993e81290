"""Contains the nominations of nodes for waiting GPU pods: which to write, and which to clear."""
