"""Runs the page's server: answers, streams and questions."""
