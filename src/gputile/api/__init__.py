"""Defines what gputile shares with the cluster: objects, wire formats, known names and amounts."""
