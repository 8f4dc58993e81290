"""Answers the kubelet: which device IDs a container gets, and what it is given with them."""
