"""Serves the kubelet's sockets in a process that outlives the agent.

While no device plugin is registered, the kubelet permanently fails every GPU pod that it admits. So
the sockets, the registrations and the streams of device IDs belong to a separate, simple process.
It runs the agent as its child, relays the kubelet's calls to it, and queues them while a new agent
starts.
"""
