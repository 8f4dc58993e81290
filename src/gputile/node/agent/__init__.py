"""Reports the GPUs of its node, and decides which of them each container may use. Runs on each GPU node."""
