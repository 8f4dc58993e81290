"""Answers what-if questions about manifests, with the same code that places pods in a cluster."""
