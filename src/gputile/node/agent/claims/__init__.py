"""Serves the node's GPUs by ResourceClaims: publishes ResourceSlices, prepares and unprepares
claims.
"""
