"""The words shared with the cluster: slim Kubernetes objects, wire formats, well-known names, amounts."""
