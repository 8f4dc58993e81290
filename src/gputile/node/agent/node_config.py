"""Describes what the node advertises: its GPUs, and the mode, memory unit and sharing in force.

In mode ``default``, NVIDIA's own methods can share whole GPUs (G3). The node's label
``gputile.io/sharing`` selects the method. ``time-slicing`` lists each GPU ``gputile.io/replicas``
times as ``nvidia.com/gpu``. ``mig`` lists existing MIG instances as ``nvidia.com/mig-<profile>``,
and GPUs without MIG as ``nvidia.com/gpu``. gputile does not book MIG instances. It is sufficient
that kube-scheduler counts them, because the instances of one profile are interchangeable.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, TOPOLOGY_GPU, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory, resources_for_mode
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.probe import ProbedMachine, inventory_of

MODE_RESOURCES: Final = (GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU, WHOLE_GPU)
# The modes in which gputile's library isolates containers. In mode mps, MPS isolates them.
LIBRARY_MODES: Final = frozenset({Mode.CGPU, Mode.CORE_MEM})


def is_served(resource: str) -> bool:
    """Return whether an agent serves the resource in some mode."""
    return resource in MODE_RESOURCES or resource.startswith(MIG_PREFIX)


class Sharing(StrEnum):
    """NVIDIA's own methods to share the GPUs of a node in mode ``default``."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class EffectiveMode:
    """The settings in force. The node's labels may already request other settings.

    ``claims`` is True if the node offers its GPUs to ResourceClaims instead of as extended
    resources. ``shared_mib`` is the memory of each GPU that pods may share, or 0 for all memory.
    """

    mode: Mode
    unit_mib: int
    sharing: Sharing = Sharing.NONE
    replicas: int = 1
    claims: bool = False
    shared_mib: int = 0


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG instance of the GPU with ``index``."""

    index: int
    uuid: str
    resource: str
    mib: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What the node advertises: the GPUs in its ``inventory``, and its MIG instances.

    ``withheld`` is the reason why the node advertises nothing, or None if it advertises its GPUs.
    """

    inventory: Inventory
    effective_mode: EffectiveMode
    instances: tuple[MigDevice, ...] = ()
    withheld: str | None = None

    @property
    def mode(self) -> Mode:
        return self.effective_mode.mode

    @property
    def replicated(self) -> bool:
        return self.effective_mode.sharing is Sharing.TIME_SLICING

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.inventory.gpus if gpu.uuid == uuid), None)

    def gpus(self, uuids: Collection[str]) -> tuple[Gpu, ...]:
        """Return the existing GPUs with these UUIDs, sorted by index."""
        return tuple(gpu for gpu in self.inventory.gpus if gpu.uuid in uuids)

    def names(self, uuids: Collection[str]) -> str:
        """Return GPU names for messages: ``GPU`` and the index, or the UUID of a missing GPU."""
        there = self.gpus(uuids)
        gone = sorted(set(uuids) - {gpu.uuid for gpu in there})
        return ", ".join([*(f"GPU {gpu.index}" for gpu in there), *gone])

    def advertises(self, resource: str) -> bool:
        if self.withheld is not None or self.effective_mode.claims:
            return False
        if resource.startswith(MIG_PREFIX):
            return any(instance.resource == resource for instance in self.instances)
        # The unit here is 1 MiB. Even if the unit in force is larger than every GPU, pods with a
        # smaller unit keep their IDs.
        offered = resources_for_mode(self.mode, self.inventory.gpus, 1, count_unhealthy=True)
        return offered.get(resource, 0) > 0

    def visible(self, ids: Collection[str], gpus: Collection[str]) -> tuple[str, ...]:
        """Return the UUIDs of a container's MIG instances, or of its GPUs if it has none."""
        instances = tuple(instance.uuid for instance in self.instances if instance.uuid in ids)
        return instances or tuple(gpu.uuid for gpu in self.gpus(gpus))


def node_config_of(
    machine: ProbedMachine,
    health: Health,
    effective_mode: EffectiveMode,
    other_plugin: str | None,
    mps_problem: str | None,
) -> NodeConfig:
    """Return what the node advertises.

    The node withholds everything if ``other_plugin`` or ``mps_problem`` is not None.
    """
    replicas = effective_mode.replicas if effective_mode.sharing is Sharing.TIME_SLICING else 0
    mode, unit = effective_mode.mode, effective_mode.unit_mib
    inventory = inventory_of(machine, health, mode, unit, replicas, effective_mode.shared_mib)
    mig = effective_mode.sharing is Sharing.MIG
    inventory = msgspec.structs.replace(
        inventory, claims=effective_mode.claims, mig=mig, shared_mib=effective_mode.shared_mib
    )
    instances = tuple(instances_of(machine, health)) if mig else ()
    withheld = mps_problem
    if other_plugin is not None:
        withheld = f"another device plugin serves the GPUs of this node ({other_plugin})"
    return NodeConfig(inventory, effective_mode, instances, withheld)


def instances_of(machine: ProbedMachine, health: Health) -> list[MigDevice]:
    """Return the MIG instances of all GPUs, sorted by GPU and NVIDIA's instance IDs."""
    found = []
    for gpu in machine.gpus:
        ordered = sorted(gpu.instances, key=lambda instance: (instance.gi, instance.ci))
        for instance in ordered:
            resource = MIG_PREFIX + instance.profile.replace("+", ".")
            well = health.healthy(gpu.uuid) and health.healthy(instance.uuid)
            found.append(MigDevice(gpu.index, instance.uuid, resource, instance.mib, well))
    return found


def closed(node_config: NodeConfig) -> Inventory:
    return msgspec.structs.replace(node_config.inventory, gpus=(), bandwidth=())
