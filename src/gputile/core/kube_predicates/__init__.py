"""Checks what Kubernetes itself checks of a pod: kube-scheduler's in-tree plugins and their rules."""
