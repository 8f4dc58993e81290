"""Tells whether this machine has an NVIDIA GPU, with or without a driver, by what the kernel shows.

A node without GPUs runs this every so often for ever, so it imports next to nothing.
"""

# pathlib would be a tenth of the memory of a process that does nothing else:
# ruff: noqa: PTH110, PTH115, PTH118, PTH119, PTH123, PTH208
import os

_VENDOR = b"0x10de"  # NVIDIA, in the PCI ID registry
_DISPLAY = b"0x03"  # PCI base class: display controllers, 3D controllers among them; the GPUs' audio is 0x04
_ELSEWHERE = "vfio-pci"  # the driver of devices that belong to a virtual machine


def gpu_evidence(root: str = "/") -> str | None:
    """Return what shows that there is a GPU, None if nothing does. ``root`` is where /sys, /proc and /dev are.

    A GPU counts by being on the PCI bus: a node whose driver is missing is to say so (L1). A virtual machine of
    Windows (WSL) and a Tegra have no GPU on that bus.
    """
    devices = os.path.join(root, "sys/bus/pci/devices")
    for name in _names(devices):
        device = os.path.join(devices, name)
        ours = _read(device, "vendor") == _VENDOR and _read(device, "class").startswith(_DISPLAY)
        if ours and os.path.basename(_link(os.path.join(device, "driver"))) != _ELSEWHERE:
            return f"PCI device {name}"
    for name in _names(os.path.join(root, "proc/driver/nvidia/gpus")):
        return f"the driver's GPU {name}"
    for path in ("dev/nvidiactl", "sys/class/misc/dxg"):
        if os.path.exists(os.path.join(root, path)):
            return f"/{path}"
    if _read(root, "sys/devices/soc0/family").lower().startswith(b"tegra"):
        return "a Tegra"
    return "a Tegra" if b"nvidia,tegra" in _read(root, "proc/device-tree/compatible") else None


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _read(directory: str, name: str) -> bytes:
    try:
        with open(os.path.join(directory, name), "rb", buffering=0) as file:
            return file.read(4096).strip()
    except OSError:
        return b""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
