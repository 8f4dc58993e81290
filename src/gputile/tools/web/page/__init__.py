"""Builds what the page shows: records, tiles, changes and files."""
