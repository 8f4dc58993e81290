"""Defines what a probe reads about the machine's GPUs, and derives the inventory for scheduling."""

from dataclasses import dataclass
from enum import StrEnum

from gputile.api.well_known import ConditionReason, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.nvml.gpu_health import Health


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason and message of a node condition that says why GPUs cannot be used."""

    reason: ConditionReason
    message: str


class Mig(StrEnum):
    """A GPU's MIG mode (NVIDIA Multi-Instance GPU). In mode ON, only its instances can be used."""

    INCAPABLE = "incapable"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance of a GPU."""

    uuid: str
    profile: str  # NVIDIA's name of the instance's size, such as 1g.10gb
    mib: int  # memory
    gi: int  # ID of the GPU instance
    ci: int  # ID of the compute instance


@dataclass(frozen=True, slots=True)
class ProbedGpu:
    """A GPU as NVML describes it.

    ``model``, ``mib`` and ``bus_id`` are the values of ``nvidia-smi
    --query-gpu=gpu_name,memory.total,pci.bus_id``. NVLink connects all GPUs with the same
    ``nvlink_group``, directly or through other GPUs. A ``unified`` GPU, such as GB10, has no memory
    of its own, so its ``mib`` is the memory of the machine.
    """

    index: int
    uuid: str
    model: str
    mib: int
    bus_id: str
    numa: int = -1  # NUMA node, or -1 if unknown
    mig: Mig = Mig.INCAPABLE
    instances: tuple[MigInstance, ...] = ()
    unified: bool = False
    architecture: str = ""  # NVIDIA's name, such as Hopper, or "" if unknown
    nvlink_group: int = -1  # lowest index in the group, or -1 without NVLink

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUID of the GPU, followed by the UUIDs of its MIG instances."""
        return (self.uuid, *(instance.uuid for instance in self.instances))


@dataclass(frozen=True, slots=True)
class ProbedMachine:
    """The GPUs of one machine, ordered by index.

    ``bandwidth[i][j]`` is the bandwidth between the i-th and the j-th GPU of ``gpus``, in GB/s per
    direction. ``cuda`` is the highest CUDA version that the driver supports, as (major, minor).
    ``down`` is set if no GPU can be reached. ``problems`` are the problems of single GPUs.
    """

    gpus: tuple[ProbedGpu, ...] = ()
    bandwidth: tuple[tuple[float, ...], ...] = ()
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    down: Problem | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The measurements of a GPU. A measurement is None if the GPU does not provide it.

    ``used`` is the used memory in bytes. ``busy_percent`` is NVML's utilization. The numbers of ECC
    errors cover the GPU's lifetime.
    """

    uuid: str
    used: int | None = None
    busy_percent: int | None = None
    celsius: int | None = None
    watts: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


def inventory_of(
    machine: ProbedMachine,
    health: Health,
    mode: str = "",
    unit_mib: int = 0,
    replicas: int = 0,
    shared_mib: int = 0,
) -> Inventory:
    """Return the inventory of ``machine`` that the agent publishes for scheduling.

    ``shared_mib`` limits the memory of each GPU in modes that share GPUs by memory. 0 means no
    limit. A GPU in MIG mode is omitted, because no pod can get the whole GPU. In modes that
    share GPUs by memory, a unified GPU is omitted unless ``shared_mib`` limits how much of the
    machine's memory pods may share.
    """
    by_memory = bool(mode) and Mode(mode).shared
    left_out = by_memory and not shared_mib
    whole = [
        i
        for i, gpu in enumerate(machine.gpus)
        if gpu.mig is not Mig.ON and not (gpu.unified and left_out)
    ]
    gpus = tuple(
        Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            mib=min(gpu.mib, shared_mib) if by_memory and shared_mib else gpu.mib,
            model=gpu.model,
            numa=gpu.numa,
            healthy=health.healthy(gpu.uuid),
        )
        for gpu in (machine.gpus[i] for i in whole)
    )
    rows = (
        tuple(tuple(machine.bandwidth[i][j] for j in whole) for i in whole)
        if machine.bandwidth
        else ()
    )
    return Inventory(gpus=gpus, mode=mode, unit_mib=unit_mib, replicas=replicas, bandwidth=rows)
