"""Reads this machine's GPUs through the NVIDIA driver's management library (NVML).

``nvml_probe`` is a session with the driver, ``probe`` what it tells. ``gpu_monitor`` keeps a session open, and says at
any time what is known of the machine.
"""
