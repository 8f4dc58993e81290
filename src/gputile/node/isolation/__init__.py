"""Installs the library of native/ in containers, writes its limits, and tests their enforcement."""
