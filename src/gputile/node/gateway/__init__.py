"""Serves the kubelet's sockets in a process that outlives the agent.

While no device plugin is registered, the kubelet permanently fails every GPU pod that it admits. So
a separate, simple process owns the sockets, the registrations and the streams of device IDs. This
gateway runs the agent as its child, and relays the kubelet's calls to the agent. Calls wait in a
queue while a new agent starts.
"""
