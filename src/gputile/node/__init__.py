"""What runs on a GPU node: the agent, the gateway to the kubelet, the time arbiter, isolation, and NVML."""
