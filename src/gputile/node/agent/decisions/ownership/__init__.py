"""Decides who has devices and who loses them, by what the kubelet says."""
