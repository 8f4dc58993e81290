"""The HTTP extender of kube-scheduler: which nodes, how good, which GPUs, and the Binding."""
