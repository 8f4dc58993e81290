"""The HTTP extender of kube-scheduler: which nodes, how good, which cards, and the Binding."""
