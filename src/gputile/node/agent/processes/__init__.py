"""Runs the processes beside the agent: MPS control daemons, and the arbiter of GPU time."""
