"""Defines what gputile shares with the cluster: objects, JSON formats, names and quantities."""
