"""Names what a decision can have done outside of the state, in its order.

``shell.executor`` executes it. The kubelet's calls are answered with an ``AllocateAnswer``, with device IDs or with a
``Start``; what is to be written to the API server is a ``Correction``.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from gputile.node.agent.decisions.answers.allocate import GpuUuids
from gputile.node.agent.decisions.devices.device_lists import Device
from gputile.node.nvml.probe import ProbedMachine


@dataclass(frozen=True, slots=True)
class RunDaemons:
    """Run the MPS control daemons of just these sets of GPUs."""

    sets: Set[GpuUuids]


@dataclass(frozen=True, slots=True)
class WriteCdi:
    """Tell container runtimes which devices the machine has."""

    machine: ProbedMachine


@dataclass(frozen=True, slots=True)
class AdvertiseDevices:
    """Have just these resources registered with the kubelet, each with its device IDs and whether each is healthy."""

    devices: Mapping[str, tuple[Device, ...]]


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write down who holds what and what is in force. What fails is tried again when devices are next advertised."""


@dataclass(frozen=True, slots=True)
class ShareTime:
    """Tell the arbiter, and the files of the allocations, what each container gets of its GPUs' time."""


@dataclass(frozen=True, slots=True)
class RemoveOthers:
    """Remove the allocation directories but these, and but those of the pods with these UIDs."""

    directories: Set[str]
    pods: Set[str]


Instruction = RunDaemons | WriteCdi | AdvertiseDevices | SaveCheckpoint | ShareTime | RemoveOthers
