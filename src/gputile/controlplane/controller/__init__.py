"""Looks after the whole cluster: taints of GPU nodes, nodes whose agent is silent, and gangs."""
