"""Checks the kinds that make pods, Kubernetes' own and others."""
