"""Serves the node's GPUs by ResourceClaims: publishes ResourceSlices, and prepares and unprepares claims."""
