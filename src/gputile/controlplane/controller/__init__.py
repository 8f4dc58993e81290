"""The controller: what looks at the whole cluster. Taints of GPU nodes, nodes whose agent is silent, and gangs."""
