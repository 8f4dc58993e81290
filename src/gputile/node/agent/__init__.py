"""The node agent: what a node's cards are, and what each container may use of them."""
