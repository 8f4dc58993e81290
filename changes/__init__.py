"""News of the next version: a file for each change, assembled into CHANGELOG.md by ``python -m changes``."""
