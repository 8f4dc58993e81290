"""Contains the components of a GPU node: agent, kubelet gateway, arbiter, isolation and NVML."""
