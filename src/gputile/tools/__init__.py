"""Contains the tools of users: simulator, replay of traces, node pools, views of commands."""
