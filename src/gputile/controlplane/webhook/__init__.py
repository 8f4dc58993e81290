"""Serves the rules of ``gputile.core.admission`` over HTTPS, and maintains the certificate."""
