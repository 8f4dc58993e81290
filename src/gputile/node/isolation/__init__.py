"""Installs the library of native/, encodes limits for it, and tests that they are enforced."""
