"""Serves the admission rules of ``gputile.core.admission`` over HTTPS, and maintains the
certificate.
"""
