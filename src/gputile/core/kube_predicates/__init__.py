"""What Kubernetes itself checks of a pod: kube-scheduler's in-tree plugins, and the API server's rules for them."""
