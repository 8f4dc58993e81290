"""Makes one cluster of the files: nodes, running pods, and the pods that workloads would have."""
