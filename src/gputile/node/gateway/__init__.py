"""Serves the kubelet's sockets in a process that outlives the agent.

A kubelet without a registered device plugin fails every pod that it admits meanwhile, for good. So the sockets, the
registrations and the streams of device IDs belong to a process that does nothing else: it runs the agent as its child,
relays the kubelet's calls to it, and holds them back while a new agent starts.
"""
