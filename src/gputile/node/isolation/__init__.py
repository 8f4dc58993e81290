"""Installs the library of native/ on the node, encodes its limits, and tests their enforcement."""
