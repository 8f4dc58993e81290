"""Shares the GPUs of a Kubernetes cluster."""
