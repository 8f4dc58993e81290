"""What a kernel shows of a machine's hardware: a directory with the files of /sys and /proc that gputile reads."""

from pathlib import Path

NVIDIA, INTEL = "0x10de", "0x8086"
GPU, AUDIO, BRIDGE = "0x030200", "0x040300", "0x060400"


def pci_device(root: Path, address: str, vendor: str = NVIDIA, kind: str = GPU, driver: str = "") -> Path:
    """Put a device on the PCI bus of the machine with ``root``."""
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    if driver:
        (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return device


def with_gpu(root: Path) -> Path:
    """Return ``root`` as that of a machine with a GPU, whatever its driver."""
    if not (root / "sys").exists():
        pci_device(root, "0000:00:1f.0", INTEL, BRIDGE)
        pci_device(root, "0000:17:00.0")
    return root
