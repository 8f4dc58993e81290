"""Contains the components that run on a GPU node: agent, gateway to the kubelet, time arbiter, isolation, NVML."""
