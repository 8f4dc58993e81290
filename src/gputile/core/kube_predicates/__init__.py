"""Repeats the checks of kube-scheduler's in-tree plugins: whether a pod may run on a node."""
