"""Answers kube-scheduler as its HTTP extender: which nodes, how good, which GPUs, and the Binding."""
