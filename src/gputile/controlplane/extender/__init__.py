"""Serves kube-scheduler's HTTP extender calls: filters and ranks nodes, picks GPUs, binds pods."""
