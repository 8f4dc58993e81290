"""Defines what gputile shares with the cluster: objects, wire formats, well-known names and
amounts.
"""
