"""Reads this machine's GPUs through the NVIDIA driver's management library (NVML).

``probe`` is the interface, with two backends: ``nvml_probe`` (NVML) and ``null_probe`` (no driver). ``monitor`` keeps
one of them open, and says at any time what is known of the machine.
"""
