"""Describes why a request does not fit a node or a GPU: the rule, the amounts, and their words."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU, Mode
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
    return "on one GPU" if shape.gpus == 1 else f"on each of {shape.gpus} GPUs"


class FitRule(IntEnum):
    """The rule that a node breaks for a request; the order is the order of the checks."""

    NO_GPUS = 1
    BROKEN = 2
    UNPLACED = 3
    MODE = 4
    UNIT = 5
    TOO_FEW = 6
    TOO_LARGE = 7
    GPUS_TAKEN = 8


# The reason in short, where there are too many nodes: equal texts, so that kube-scheduler can count them.
SUMMARY = {
    FitRule.NO_GPUS: "node(s) without usable GPUs",
    FitRule.BROKEN: "node(s) without usable GPUs",
    FitRule.UNPLACED: "node(s) with a pod on GPUs that nobody knows",
    FitRule.MODE: "node(s) whose GPU mode does not serve the pod's GPU resource",
    FitRule.UNIT: "node(s) whose memory unit is not the pod's",
    FitRule.TOO_FEW: "node(s) with fewer GPUs than the pod needs",
    FitRule.TOO_LARGE: "node(s) whose GPUs are smaller than the pod needs",
    FitRule.GPUS_TAKEN: "node(s) without enough free on their GPUs",
}
# Rules that no eviction of pods can satisfy: preemption is not worth trying.
UNRESOLVABLE = frozenset(
    {FitRule.NO_GPUS, FitRule.BROKEN, FitRule.MODE, FitRule.UNIT, FitRule.TOO_FEW, FitRule.TOO_LARGE}
)
_SERVES_TEXT = {
    Mode.EXCLUSIVE: f"whole GPUs ({WHOLE_GPU})",
    Mode.TOPOLOGY: f"whole GPUs by topology ({TOPOLOGY_GPU})",
    Mode.CORE_MEM: f"{GPU_MEMORY} together with {GPU_CORE}",
}


@dataclass(frozen=True, slots=True)
class FitRefusal:
    """Why a request does not fit a node: by the rule the pod cannot get ``used`` of the node's ``capacity`` GPUs.

    ``gpu`` is the GPU that comes closest, the largest one where all are too small, and ``shortage`` says what it lacks.
    ``blocked_by`` names the pod because of which the node takes no others. ``node_info`` is None for an unknown node.
    """

    rule: FitRule
    shape: Shape
    node_info: NodeInfo | None = None
    used: int = 0
    capacity: int = 0
    gpu: GpuState | None = None
    shortage: GpuShortage | None = None
    blocked_by: str = ""

    @property
    def requested(self) -> int:
        return self.shape.gpus

    @property
    def unresolvable(self) -> bool:
        """Whether the request would not fit the empty node either."""
        return self.rule in UNRESOLVABLE

    @property
    def text(self) -> str:
        node_info, shape, left = self.node_info, self.shape, self.capacity - self.used
        if node_info is None:
            return "the node is not known to gputile yet"
        match self.rule:
            case FitRule.NO_GPUS:
                return "it has no GPUs that gputile knows; is gputile's agent running there?"
            case FitRule.BROKEN:
                return node_info.problem
            case FitRule.UNPLACED:
                remedy = "the node's agent has to report them, or the pod to go"
                return f"pod {self.blocked_by} is on GPUs that nobody knows; {remedy}"
            case FitRule.MODE:
                return _mode_text(node_info, shape)
            case FitRule.UNIT:
                return _unit_text(node_info, shape)
            case FitRule.TOO_FEW:
                unhealthy = f", {self.used} of them unhealthy" if self.used else ""
                return f"it has {_gpus(self.capacity)}{unhealthy}; the pod needs {self.requested}"
            case FitRule.TOO_LARGE:
                return self._too_large_text(node_info)
        if self.gpu is None or self.shortage is None:
            return f"{left} of {_gpus(self.capacity)} {_are(left)} free; the pod needs {self.requested}"
        text = f"GPU {self.gpu.gpu.index} {self.shortage.text(shape, node_info)}"
        return text if shape.gpus == 1 else f"{text} ({left} of {self.capacity} GPUs could take their part)"

    def _too_large_text(self, node_info: NodeInfo) -> str:
        """Name the largest of the GPUs that are too small, and how many are not."""
        unit, gpu, large = node_info.unit_mib, self.gpu, self.capacity - self.used
        units, index = (gpu.total // unit, gpu.gpu.index) if gpu is not None else (0, 0)
        need = f"the pod needs {amount(self.shape.mib, unit)} {on_gpus(self.shape)}"
        if not large:
            return f"its largest GPU has {units} units of {unit} MiB; {need}"
        enough = f"{large} of its {self.capacity} GPUs {_are(large)} large enough"
        return f"{enough}, GPU {index} has {units} units of {unit} MiB; {need}"


def _mode_text(node_info: NodeInfo, shape: Shape) -> str:
    if node_info.mode is None:
        return node_info.problem
    served = _SERVES_TEXT.get(node_info.mode, f"{GPU_MEMORY} alone")
    asked = f"{GPU_MEMORY} and {GPU_CORE}" if shape.percent else shape.kind.value
    return f"its mode {node_info.mode.value} serves {served}; the pod asks for {asked}"


def _unit_text(node_info: NodeInfo, shape: Shape) -> str:
    """Name the pod or node with the older unit, and what to do: amounts keep the unit from the pod's creation (U5)."""
    if shape.unit_mib == node_info.configured_unit_mib:
        return (
            f"its memory unit is still {node_info.unit_mib} MiB; the pod counts in the {shape.unit_mib} MiB that are "
            f"configured, which the node's agent has to take over"
        )
    units = -(-shape.mib // node_info.unit_mib) * shape.gpus
    return (
        f"its memory unit is {node_info.unit_mib} MiB; the pod counts in the {shape.unit_mib} MiB that were in force "
        f"when it was created: create it anew, and ask {units} units for its {shape.mib * shape.gpus} MiB"
    )


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


NAMES_SHOWN = 3


def grouped(said: Iterable[tuple[str, str]], asked: int, most: int) -> list[str]:
    """Return a text for each of the first ``most`` reasons of (node, reason), and how many of ``asked`` nodes are left.

    Reasons are in the order of their first nodes.
    """
    names: dict[str, list[str]] = {}
    for name, why in said:
        names.setdefault(why, []).append(name)
    shown = list(names.items())[:most]
    left = asked - sum(len(alike) for _, alike in shown)
    return [told_of(alike, why) for why, alike in shown] + ([f"and {left} more"] if left > 0 else [])


def told_of(names: Collection[str], why: str) -> str:
    """Return "NODE: why", or "4 nodes (NODE, ...): why"."""
    return told_of_first(first_few(names), len(names), why)


def told_of_first(first: Sequence[str], count: int, why: str) -> str:
    """Return what ``told_of`` does, of ``count`` nodes whose ``first_few`` are known."""
    return f"{first[0]}: {why}" if count == 1 else f"{count} nodes ({some(first, count)}): {why}"


def some(first: Sequence[str], count: int) -> str:
    """Return the ``first_few`` of ``count`` nodes in a text that tells whether there are more."""
    return ", ".join(first) + (", ..." if count > len(first) else "")


def first_few(names: Iterable[str]) -> list[str]:
    """Return the first few of ``names`` by the alphabet.

    kube-scheduler names nodes in another order each time; what is said of the same nodes stays the same text.
    """
    return heapq.nsmallest(NAMES_SHOWN, names)
