"""Describes what the agent finds around itself: paths, and what watches the machine's GPUs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from gputile.node.nvml.gpu_monitor import Observation
from gputile.node.nvml.probe import GpuReading

MPS_DIRECTORY = "mps"


class HostPaths(msgspec.Struct, frozen=True):
    """Where things are.

    ``host_state`` is the state directory as the host sees it, for mounts into containers. ``usage`` is for what
    containers write, at the same path on the host: see ``usage_files``. With a ``cdi`` directory containers get their
    devices by CDI too. ``root`` is where the agent sees the host's /usr and /proc/driver.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    state: Path = Path("/var/lib/gputile")
    host_state: Path | None = None
    cdi: Path | None = None
    root: Path = Path("/")
    usage: Path = Path("/run/gputile")

    @property
    def claim(self) -> Path:
        """The file that says which gateway serves the node."""
        return self.state / "owner"


class GpuMonitor(Protocol):
    """What watches the machine's GPUs: ``gputile.node.nvml.gpu_monitor.Monitor``, or a test's own."""

    seen: Observation
    readings: tuple[GpuReading, ...]
    xids: Mapping[tuple[str, int], int]

    def step(self, seconds: float) -> bool:
        """Watch for so many seconds, in a thread; return whether anything changed."""

    def close(self) -> None:
        """Stop watching."""
