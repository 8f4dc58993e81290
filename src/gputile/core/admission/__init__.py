"""Reviews a pod before it is stored: rewrites old forms, completes GPU pods, and refuses invalid
ones.
"""
