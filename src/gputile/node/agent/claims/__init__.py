"""Serves GPUs by ResourceClaims: publishes ResourceSlices, prepares and unprepares claims."""
