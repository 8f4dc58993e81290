"""Serves kube-scheduler's HTTP extender calls: filters and ranks nodes, chooses GPUs, and binds
pods.
"""
