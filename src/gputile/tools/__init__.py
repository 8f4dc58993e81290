"""Contains the tools for users: the simulator, node pools, the web page and commands' views."""
