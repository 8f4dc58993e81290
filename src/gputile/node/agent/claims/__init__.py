"""Serves GPUs to ResourceClaims: publishes ResourceSlices, and prepares and unprepares claims."""
