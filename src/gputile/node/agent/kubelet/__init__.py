"""Talks to the kubelet through the gateway: its calls, its list, and what it is told."""
