"""Compares manifests with the cluster that they are applied to."""
