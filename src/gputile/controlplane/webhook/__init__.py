"""Serves the pure rules of ``gputile.core.admission`` over HTTPS, and keeps its certificate."""
