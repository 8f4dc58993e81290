"""Describes a node as the ledger knows it: GPUs, bookings, mode, and whether the node is closed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.quantity import count_of
from gputile.api.well_known import (
    CONDITION_PREFIX,
    HANDOVER_ANNOTATION,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MODES,
    PLACEMENT_LABEL,
    PLACEMENTS,
    WHOLE_GPU,
    ConditionType,
    Mode,
)
from gputile.api.wording import nearest
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    InventoryError,
    advertised_units,
    decode_inventory,
    resources_for_mode,
    unknown_mode,
)
from gputile.core.kube_predicates.pod_requests import HostResources, host_allocatable

UNKNOWN_HOST = HostResources(cpu=128_000, mib=1024 * 1024)
"""The CPU and memory that a node is assumed to have if it reports none."""


class ServingMode(IntEnum):
    """The GPU requests that a node serves.

    OTHER_PLUGIN means that another device plugin manages the node's whole GPUs. SLICED means that
    several pods share each whole GPU by time-slicing. BLOCKED means that no pods are bound to the
    node while a pod on it uses unknown GPUs.
    """

    NOTHING = 0
    WHOLE = 1
    TOPOLOGY = 2
    MEMORY = 3
    MEMORY_AND_CORE = 4
    OTHER_PLUGIN = 5
    BLOCKED = 6
    SLICED = 7

    @property
    def blocks(self) -> bool:
        """Whether a pod on unknown GPUs blocks the node.

        Only a node where gputile books individual GPUs is blocked. This excludes nodes with
        time-sliced GPUs and nodes with GPUs of another device plugin.
        """
        return self not in (ServingMode.NOTHING, ServingMode.OTHER_PLUGIN, ServingMode.SLICED)


_SERVING_MODE = {
    Mode.EXCLUSIVE: ServingMode.WHOLE,
    Mode.TOPOLOGY: ServingMode.TOPOLOGY,
    Mode.CORE_MEM: ServingMode.MEMORY_AND_CORE,
}


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The validated content of a Node."""

    name: str
    address: str
    mode: Mode | None  # None if the mode is invalid
    unit_mib: int  # the memory unit in force on this node
    placement: str
    inventory: Inventory
    serving_mode: ServingMode
    max_pods_per_gpu: int  # with time-slicing, the time slices of each GPU
    grouped: bool  # each GPU may have pods of one trust group only
    problem: str = ""  # the reason why the node serves nothing
    host: HostResources = UNKNOWN_HOST  # the CPU and memory that pods may use
    configured_unit_mib: int = 0  # the configured unit, which may differ from the unit in force
    # Cordoned, not ready, or no GPUs offered by the kubelet. The GPUs can still be booked.
    closed: bool = False
    checked: Node | None = None  # what kube-scheduler checks, None without GPUs
    by_claims: bool = False  # GPUs are offered by ResourceClaims, which kube-scheduler allocates

    def gpu_total(self, position: int) -> int:
        """Return the MiB of a GPU that can be allocated. Shared GPUs count in whole units."""
        gpu = self.inventory.gpus[position]
        if self.mode is not None and self.mode.shared:
            return advertised_units(gpu, self.unit_mib) * self.unit_mib
        return gpu.mib

    def column(self, uuid: str) -> int | None:
        """Return the position of a GPU in the inventory, or None if the node lacks the GPU."""
        for column, gpu in enumerate(self.inventory.gpus):
            if gpu.uuid == uuid:
                return column
        return None

    @property
    def replicas(self) -> int:
        """The time slices of each whole GPU, or 0 without time-slicing."""
        return self.inventory.replicas if self.mode is Mode.EXCLUSIVE else 0

    @property
    def sliced(self) -> bool:
        return self.replicas > 0

    @property
    def isolates_memory(self) -> bool:
        """Whether each pod's GPU memory is known to be protected from other pods."""
        return not self.grouped and self.serving_mode is not ServingMode.OTHER_PLUGIN


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU and its bookings: MiB, percent of compute, pods, and the number of its trust group.

    With time-slicing, ``pods`` counts the time slices in use.
    """

    gpu: Gpu
    total: int
    used: int
    percent: int
    pods: int
    group: int

    @property
    def free(self) -> int:
        """The MiB that can still be booked, which is 0 on an overbooked GPU."""
        return max(0, self.total - self.used)

    @property
    def empty(self) -> bool:
        return self.pods == 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and its GPUs. Pods in ``blocked_by`` use unknown GPUs, so the node is blocked."""

    info: NodeInfo
    serving_mode: ServingMode
    gpus: tuple[GpuState, ...]
    blocked_by: tuple[str, ...] = ()


NO_GPUS = Inventory(gpus=())
UNLIMITED_PODS = 2**31 - 1


def node_info_of(node: Node, configuration: Configuration) -> NodeInfo:
    """Read a Node's GPUs and settings.

    The agent reports the mode and the unit in force, which take precedence over label and
    configuration: a change is postponed while GPU pods run (M12).
    """
    meta = node.metadata
    inventory, unreadable = _inventory(meta)
    mode, unknown = _mode(meta, inventory)
    problem = unknown or unreadable
    if inventory.claims and (mode is Mode.SHARE or inventory.replicas):
        problem = (
            "it offers GPUs by claims without memory isolation, so pods of different trust groups "
            "could share a GPU"
        )
    if problem:
        inventory = NO_GPUS
    serving_mode = ServingMode.NOTHING if problem else _serving_mode(node, mode, inventory)
    if HANDOVER_ANNOTATION in meta.annotations and not problem:
        serving_mode = ServingMode.NOTHING
        problem = "its agent is being replaced; the node accepts GPU pods again soon"
    max_pods_per_gpu = inventory.replicas if serving_mode is ServingMode.SLICED else UNLIMITED_PODS
    if mode in (Mode.CGPU, Mode.CORE_MEM, Mode.MPS):
        max_pods_per_gpu = configuration.max_pods_per_gpu
    unit_mib = CLAIM_UNIT_MIB if inventory.claims else inventory.unit_mib or configuration.unit_mib
    return NodeInfo(
        name=meta.name,
        address=node.internal_ip,
        mode=mode,
        unit_mib=unit_mib,
        placement=_placement(meta, configuration),
        inventory=inventory,
        serving_mode=serving_mode,
        max_pods_per_gpu=max_pods_per_gpu,
        grouped=mode is Mode.SHARE or serving_mode is ServingMode.SLICED,
        problem=problem,
        host=host_allocatable(node, UNKNOWN_HOST),
        configured_unit_mib=configuration.unit_mib,
        closed=_closed(node, mode, inventory, unit_mib),
        checked=Node(metadata=ObjectMeta(name=meta.name, labels=meta.labels), spec=node.spec)
        if inventory.gpus
        else None,
        by_claims=inventory.claims,
    )


def unit_in_force(nodes: Iterable[Node]) -> int | None:
    """Return the memory unit, in MiB, of the majority of the nodes with an agent, or None.

    Nodes differ while a change of the unit is in progress. Of two units with equally many nodes,
    the smaller one is returned.
    """
    found = Counter(node_info_of(node, Configuration()).inventory.unit_mib for node in nodes)
    del found[0]
    return max(found, key=lambda unit: (found[unit], -unit), default=None)


def _closed(node: Node, mode: Mode | None, inventory: Inventory, unit_mib: int) -> bool:
    if not inventory.gpus:
        return False
    closure = closed_by(node) or nothing_offered(node, mode, inventory, unit_mib)
    return node.spec.unschedulable or closure is not None


def _inventory(meta: ObjectMeta) -> tuple[Inventory, str]:
    """Return the inventory that the agent has reported, and an error or ""."""
    text = meta.annotations.get(INVENTORY_ANNOTATION)
    try:
        return (NO_GPUS if text is None else decode_inventory(text)), ""
    except InventoryError as error:
        return NO_GPUS, f"its annotation {INVENTORY_ANNOTATION} cannot be read: {error}"


def _mode(meta: ObjectMeta, inventory: Inventory) -> tuple[Mode | None, str]:
    """Return the mode in force, or None and the reason why the mode is invalid."""
    label = meta.labels.get(MODE_LABEL, Mode.EXCLUSIVE.value)
    in_force = inventory.mode or label
    if in_force in MODES:
        return Mode(in_force), ""
    if inventory.mode:
        return None, f"its annotation {INVENTORY_ANNOTATION} {unknown_mode(inventory.mode)}"
    return (
        None,
        f"its label {MODE_LABEL} is {label[:63]!r}; valid are "
        f"{', '.join(MODES)}{nearest(label, MODES)}",
    )


def _placement(meta: ObjectMeta, configuration: Configuration) -> str:
    placement = meta.labels.get(PLACEMENT_LABEL, configuration.placement)
    if placement not in PLACEMENTS:
        return configuration.placement
    if placement == "packing" and configuration.placement != "packing":
        return "binpack"  # prices exist only if packing is the policy of the whole cluster
    return placement


def has_agent_condition(node: Node) -> bool:
    """Return whether an agent has set a node condition. The node may have no inventory."""
    return any(
        c.type.startswith(CONDITION_PREFIX) and c.type != ConditionType.AGENT_SILENT
        for c in node.status.conditions
    )


def _serving_mode(node: Node, mode: Mode | None, inventory: Inventory) -> ServingMode:
    if inventory.gpus and mode is not None:
        if mode is Mode.EXCLUSIVE and inventory.replicas:
            return ServingMode.SLICED
        if mode is Mode.TOPOLOGY and inventory.claims:
            return ServingMode.WHOLE
        return _SERVING_MODE.get(mode, ServingMode.MEMORY)
    reported = INVENTORY_ANNOTATION in node.metadata.annotations
    if not reported and mode is Mode.EXCLUSIVE and count_of(node.status.allocatable, WHOLE_GPU):
        return ServingMode.OTHER_PLUGIN
    return ServingMode.NOTHING


_STATE_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_CORDONED: Final = "node.kubernetes.io/unschedulable"  # people set it with `kubectl cordon`
_KEEP_OUT: Final = ("NoSchedule", "NoExecute")


def closed_by(node: Node) -> str | None:
    """Return why Kubernetes schedules no pods to the node now, or None.

    Taints that Kubernetes sets for a node's condition count. Taints that people set do not count,
    since GPU pods tolerate them.
    """
    if any(each.type == "Ready" and each.status != "True" for each in node.status.conditions):
        return "it is not ready"
    for taint in node.spec.taints:
        if (
            taint.key.startswith(_STATE_TAINTS)
            and taint.key != _CORDONED
            and taint.effect in _KEEP_OUT
        ):
            return f"it has the taint {taint.key}"
    return None


def nothing_offered(
    node: Node, mode: Mode | None, inventory: Inventory, unit_mib: int
) -> str | None:
    """Return a reason if the kubelet offers none of the node's healthy GPUs, otherwise None.

    The node's agent reports which GPUs are healthy. Whether GPUs are booked does not matter. Nor
    does it matter if the agent is silent: pods can be bound as long as the kubelet offers the GPUs.
    """
    offered = node.status.allocatable or node.status.capacity
    if not offered or mode is None or inventory.claims:
        return None
    expected = [name for name, n in resources_for_mode(mode, inventory.gpus, unit_mib).items() if n]
    if expected and not any(count_of(offered, name) for name in expected):
        return f"its kubelet offers no {min(expected)}"
    return None
