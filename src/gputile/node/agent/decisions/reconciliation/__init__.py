"""Compares what pods hold with what the kubelet lists and what is booked."""
