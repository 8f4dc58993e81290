"""What the node offers to the cluster: modes, units, device IDs, and the daemons that a mode needs."""
