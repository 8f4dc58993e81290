"""Contains the components of a GPU node: agent, gateway to the kubelet, arbiter, isolation,
NVML.
"""
