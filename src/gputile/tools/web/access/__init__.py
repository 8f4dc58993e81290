"""Admits the viewers of a page, and shows each only what it may see."""
