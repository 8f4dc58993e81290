"""Serves the kubelet in a process that outlives the agent.

While no device plugin is registered, the kubelet permanently fails every GPU pod that it admits. So
a separate, simple process, the gateway, owns the sockets, the registrations and the streams of
device IDs. The gateway runs the agent as a child process, and relays the kubelet's calls to the
agent. While a new agent starts, calls wait in a queue.
"""
