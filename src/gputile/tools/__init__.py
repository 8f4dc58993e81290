"""Contains the tools for users: simulator, node pools, web page, and the output of commands."""
