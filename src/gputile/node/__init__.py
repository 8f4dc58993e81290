"""Contains what runs on a GPU node: agent, gateway to the kubelet, time arbiter, isolation and NVML."""
