"""Answers what-if questions about manifests with the code that places pods in a live cluster."""
