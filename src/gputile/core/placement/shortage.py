"""Describes what one GPU lacks for a request: the rule, the amounts, and the words for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from gputile.api.well_known import Mode
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.ledger.snapshot import GpuState


class GpuRule(Enum):
    """The rule by which a GPU cannot be one of the pod's."""

    UNHEALTHY = auto()
    IN_USE = auto()
    SIZE = auto()
    MEMORY = auto()
    COMPUTE = auto()
    PODS = auto()
    TRUST = auto()


@dataclass(frozen=True, slots=True)
class GpuShortage:
    """A rule that a GPU breaks for a request, and the amounts by it: MiB, percent of compute, or pods."""

    rule: GpuRule
    requested: int = 0
    used: int = 0
    capacity: int = 0

    def text(self, shape: Shape, node_info: NodeInfo) -> str:
        """Return the shortage in words that go on after the GPU's name: "GPU 1" "has 3 of 15 units free; ..."."""
        unit, where = node_info.unit_mib, on_gpus(shape)
        free = max(0, self.capacity - self.used)
        match self.rule:
            case GpuRule.UNHEALTHY:
                return "is unhealthy"
            case GpuRule.IN_USE:
                return "is in use"
            case GpuRule.SIZE:
                needs = f"the pod needs {amount(self.requested, unit)} {where}"
                return f"has {self.capacity // unit} units of {unit} MiB; {needs}"
            case GpuRule.MEMORY:
                needs = f"the pod needs {amount(self.requested, unit)} {where}"
                return f"has {free // unit} of {self.capacity // unit} units free; {needs}"
            case GpuRule.COMPUTE:
                return f"has {free} of 100 percent of compute free; the pod needs {self.requested} {where}"
            case GpuRule.PODS:
                return f"holds {self.used} pods, the most that a GPU may hold here ({self.capacity})"
            case GpuRule.TRUST:
                way = "time-slicing" if node_info.sliced else f"mode {Mode.SHARE.value}"
                return f"is used by pods of another trust group, and {way} does not isolate memory"


def gpu_shortages(gpu: GpuState, shape: Shape, node_info: NodeInfo, group: int) -> Iterator[GpuShortage]:
    """Yield every rule by which ``gpu`` cannot be one of the pod's GPUs; ``group`` numbers the pod's trust group.

    None is yielded for a GPU that ``fit.gpu_fits``.
    """
    if not gpu.gpu.healthy:
        yield GpuShortage(GpuRule.UNHEALTHY)
        return
    if shape.kind is not RequestKind.SHARED and not node_info.sliced:
        if not gpu.empty:
            yield GpuShortage(GpuRule.IN_USE)
        return
    if gpu.total < shape.mib:
        yield GpuShortage(GpuRule.SIZE, shape.mib, gpu.used, gpu.total)
    elif gpu.free < shape.mib:
        yield GpuShortage(GpuRule.MEMORY, shape.mib, gpu.used, gpu.total)
    if shape.percent and gpu.percent + shape.percent > 100:
        yield GpuShortage(GpuRule.COMPUTE, shape.percent, gpu.percent, 100)
    if gpu.pods >= node_info.max_pods_per_gpu:
        yield GpuShortage(GpuRule.PODS, 1, gpu.pods, node_info.max_pods_per_gpu)
    if node_info.grouped and gpu.group != NO_GROUP and (group == NO_GROUP or gpu.group != group):
        yield GpuShortage(GpuRule.TRUST)


def amount(mib: int, unit: int) -> str:
    """Return an amount in units of ``unit`` MiB, in MiB where it is no whole number of them."""
    return str(mib // unit) if mib % unit == 0 else f"{mib} MiB"


def on_gpus(shape: Shape) -> str:
    """Return on how many GPUs an amount is needed."""
    return "on one GPU" if shape.gpus == 1 else f"on each of {shape.gpus} GPUs"
