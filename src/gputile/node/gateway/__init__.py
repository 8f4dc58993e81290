"""Talks to the kubelet in a process that lives on when the agent behind it dies.

A kubelet whose device plugin is away fails every pod that it admits meanwhile, for good. So the sockets, the
registrations and the streams of device IDs are kept by a process that does nothing else; it runs the agent as its
child, carries the kubelet's calls to it, and lets those wait that come while a new agent starts.
"""
