"""Builds the artefacts of a release, such as the container image and its bill of materials."""
