"""Which machines have an NVIDIA GPU, by what their kernels show, and what a node without one does until it has one."""

import socket
from pathlib import Path

import pytest

from gputile.node.idle import gpu_evidence, listen
from tests.conftest import HANGS_S
from tests.fakes.hardware import AUDIO, GPU, INTEL, NVIDIA, pci_device


@pytest.mark.requirement("L1")
@pytest.mark.parametrize(("kind", "driver"), [("0x030000", ""), ("0x030200", "nvidia")])
def test_display_and_3d_controllers_alike(tmp_path: Path, kind: str, driver: str) -> None:
    """A node whose driver is missing is to say so, so its agent must run."""
    pci_device(tmp_path, "0000:00:02.0", INTEL, GPU)
    pci_device(tmp_path, "0001:17:00.0", NVIDIA, kind, driver=driver)
    assert gpu_evidence(str(tmp_path)) == "PCI device 0001:17:00.0"


def test_what_is_no_gpu_of_nvidia_is_none(tmp_path: Path) -> None:
    """A GPU's audio, another vendor's GPU, a GPU that a virtual machine has, and no PCI bus at all."""
    assert gpu_evidence(str(tmp_path)) is None
    pci_device(tmp_path, "0000:00:02.0", INTEL, GPU)
    pci_device(tmp_path, "0000:17:00.1", NVIDIA, AUDIO)
    pci_device(tmp_path, "0000:18:00.0", driver="vfio-pci")
    assert gpu_evidence(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("path", "content", "evidence"),
    [
        ("dev/nvidiactl", "", "/dev/nvidiactl"),
        ("sys/class/misc/dxg", "", "/sys/class/misc/dxg"),
        ("sys/devices/soc0/family", "Tegra\n", "a Tegra"),
    ],
)
def test_gpus_that_are_not_on_the_bus(tmp_path: Path, path: str, content: str, evidence: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert gpu_evidence(str(tmp_path)) == evidence


def test_probes_reach_a_resting_agent_by_ipv4_and_by_ipv6() -> None:
    with listen(0) as listening:
        assert (listening.family is socket.AF_INET6) == socket.has_dualstack_ipv6()
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), HANGS_S).close()
