"""Reads this machine's GPUs through the NVIDIA driver's management library (NVML).

``nvml_probe`` is a session with the driver, ``probe`` defines its results, and ``gpu_monitor``
keeps a session open to watch the machine.
"""
