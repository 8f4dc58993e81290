"""Reads this machine's GPUs through the NVIDIA driver's management library (NVML).

``nvml_probe`` is a session with the driver. ``probe`` defines the results of a session.
``gpu_monitor`` keeps a session open and watches the machine.
"""
