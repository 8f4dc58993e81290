"""Defines the results of a probe of the machine's GPUs, and derives the scheduler's inventory."""

from dataclasses import dataclass
from enum import StrEnum

from gputile.api.well_known import ConditionReason, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.nvml.gpu_health import Health


@dataclass(frozen=True, slots=True)
class Problem:
    """Why GPUs of the machine are not usable: a condition's reason and message."""

    reason: ConditionReason
    message: str


class NvmlError(Exception):
    """NVML as a whole cannot be used; ``problem`` names the reason and the remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Mig(StrEnum):
    """Whether a GPU is in MIG mode (NVIDIA Multi-Instance GPU): only its instances are usable."""

    INCAPABLE = "incapable"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance with NVIDIA's ``profile`` (its size, ``1g.10gb``) and ``mib`` of memory.

    ``gi`` and ``ci`` are the IDs of its GPU instance and its compute instance.
    """

    uuid: str
    profile: str
    mib: int
    gi: int
    ci: int


@dataclass(frozen=True, slots=True)
class ProbedGpu:
    """A GPU as NVML describes it.

    ``model``, ``mib`` and ``bus_id`` are the values of ``nvidia-smi
    --query-gpu=gpu_name,memory.total,pci.bus_id``. ``numa`` and ``minor`` (of /dev/nvidiaN) are -1
    if unknown. ``architecture`` is NVIDIA's name of it, such as Hopper, or "". ``nvlink_group`` is
    the lowest index of the GPUs that NVLink connects it with, over others too; -1 without NVLink.
    A ``unified`` GPU, such as GB10, has no memory of its own: ``mib`` is then the
    machine's memory.
    """

    index: int
    uuid: str
    model: str
    mib: int
    bus_id: str
    numa: int = -1
    minor: int = -1
    mig: Mig = Mig.INCAPABLE
    instances: tuple[MigInstance, ...] = ()
    unified: bool = False
    architecture: str = ""
    nvlink_group: int = -1

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of the GPU and of its MIG instances."""
        return (self.uuid, *(instance.uuid for instance in self.instances))


@dataclass(frozen=True, slots=True)
class ProbedMachine:
    """The GPUs of one machine, ordered by index.

    ``bandwidth[i][j]`` is the bandwidth between the i-th and the j-th GPU of ``gpus``, in GB/s per
    direction. ``cuda`` is the highest CUDA version that the driver supports, as (major, minor).
    ``down`` is the reason why no GPU can be reached; ``problems`` are the problems of single GPUs.
    """

    gpus: tuple[ProbedGpu, ...] = ()
    bandwidth: tuple[tuple[float, ...], ...] = ()
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    down: Problem | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU's measurements. A measurement is None if the GPU does not provide it.

    ``used`` is memory in bytes. ``busy_percent`` is NVML's utilization. ECC errors are counted over
    the GPU's lifetime.
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
    """Return the inventory of ``machine`` for the scheduler, with the effective mode and unit.

    ``shared_mib`` limits the memory of each GPU in the modes that share by memory; 0 means no
    limit. A GPU in MIG mode is omitted, since no pod can have all of it. A unified GPU is omitted
    in the modes that share by memory, unless ``shared_mib`` sets how much of the machine's memory
    pods may share.
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
