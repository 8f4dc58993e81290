"""Serves the web page that shows GPUs as tiles: records, streaming server, and browser code."""
