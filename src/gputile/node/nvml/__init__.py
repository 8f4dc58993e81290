"""The GPUs of this machine as the NVIDIA driver's management library (NVML) tells them.

One interface (``probe``) with two backends beside each other: ``real`` (NVML) and ``null`` (no driver).
``monitor`` keeps one of them open and says what is known of the machine at any time.
"""
