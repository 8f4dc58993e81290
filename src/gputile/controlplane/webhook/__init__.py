"""Serves the pure rules of ``gputile.core.admission`` over HTTPS, and renews its own certificates."""
