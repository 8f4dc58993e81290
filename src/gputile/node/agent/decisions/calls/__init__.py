"""Decides the kubelet's calls: which devices a container gets, and whether it may start."""
