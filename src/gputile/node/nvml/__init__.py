"""Reads this machine's GPUs through the NVIDIA driver's management library (NVML).

``probe`` is the interface, ``nvml_probe`` implements it. ``gpu_monitor`` keeps one open, and says at any time what is
known of the machine.
"""
