"""The node agent: what a node's GPUs are, and what each container may use of them."""
