"""Changes a scenario for what-if questions: removes nodes, changes unit or mode, copies pods."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.affinity import LabelSelector, LabelSelectorRequirement
from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GPU_MEMORY,
    GPUSHARE_PREFIX,
    MEMORY_UNIT_ANNOTATION,
    MODE_LABEL,
    REPLICAS_LABEL,
    RESERVATION_ANNOTATION,
    SHARING_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    Mode,
)
from gputile.api.wording import broken_label_value, broken_qualified_name, nearest, shown
from gputile.core.devices.allocation import Allocation, AllocationError, decode_allocation
from gputile.core.devices.inventory import Inventory, advertised_units, resources_for_mode
from gputile.core.devices.request import PERCENT_STEP
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.tools.simulator.described_nodes import inventory_of
from gputile.tools.simulator.foreign_cluster import with_inventory
from gputile.tools.simulator.foreign_words import (
    GPU_NAMES,
    SHARED_GPU,
    with_gpus,
    with_shares,
    with_whole_gpus,
)
from gputile.tools.simulator.manifests import make_uid
from gputile.tools.simulator.outcomes import workload_name
from gputile.tools.simulator.scenario import Scenario
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from gputile.tools.simulator.workloads import owner_of

MOST_COPIES = 100_000
# Annotations that gputile adds to a pod at admission and at bind. Pod templates do not have them.
_WRITTEN = (ALLOCATION_ANNOTATION, ACK_ALLOCATION, RESERVATION_ANNOTATION, MEMORY_UNIT_ANNOTATION)


# The grammar of label selectors is from k8s.io/apimachinery, pkg/labels/selector.go.
_WORD: Final = r"[^\s=!,()]"
_REQUIREMENT: Final = re.compile(
    rf"(?P<absent>!\s*)?(?P<key>{_WORD}+)"
    rf"(?:\s*(?P<sign>==|!=|=)\s*(?P<value>{_WORD}*)"
    rf"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)
_BETWEEN: Final = re.compile(r",(?![^(]*\))")  # a comma outside of parentheses
_OPERATORS: Final = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn"}
_GRAMMAR: Final = "write it as a=b,c!=d,e in (f,g),h notin (i),j,!k"


class UnknownNode(ValueError):
    """A node to remove does not exist. ``name`` is "" if nodes were selected by labels."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


def without_nodes(scenario: Scenario, removed: Collection[str]) -> None:
    """Remove the nodes ``removed``. Their pods become pending, before other pending pods.

    Raises:
        UnknownNode: one of ``removed`` is not in the scenario.
    """
    names = {node.metadata.name for node in scenario.nodes}
    missing = sorted(set(removed) - names)
    if missing:
        raise UnknownNode(f"there is no node {missing[0] or shown(missing[0])}", missing[0])
    scenario.nodes = [node for node in scenario.nodes if node.metadata.name not in removed]
    displaced = [
        scenario.originals.get(pod.metadata.uid, pod)
        for pod in scenario.bound
        if pod.spec.node_name in removed and not pod.finished and not _ends_with_node(pod)
    ]
    scenario.bound = [pod for pod in scenario.bound if pod.spec.node_name not in removed]
    scenario.pending = [*map(_unbound, displaced), *scenario.pending]
    scenario.claims.release(removed)


def _ends_with_node(pod: Pod) -> bool:
    """Return whether a pod ends with its node because it is a static pod or a DaemonSet's pod."""
    return any(owner.kind in ("DaemonSet", "Node") for owner in pod.metadata.owner_references)


def _unbound(pod: Pod) -> Pod:
    """Return the pod as its controller would create it, without gputile's annotations."""
    others = {
        key: value
        for key, value in pod.metadata.annotations.items()
        if key not in _WRITTEN and not key.startswith(GPUSHARE_PREFIX)
    }
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=others),
        spec=msgspec.structs.replace(pod.spec, node_name=""),
        status=msgspec.structs.replace(pod.status, phase="Pending"),
    )


def with_unit(scenario: Scenario, unit_mib: int) -> None:
    """Set the memory unit of all nodes. Running pods keep their memory in bytes."""
    on_node: dict[str, list[Pod]] = {}
    for pod in scenario.bound:
        if not pod.finished:
            on_node.setdefault(pod.spec.node_name, []).append(pod)
    scenario.unit_mib = unit_mib
    scenario.nodes = [
        _with_units(node, on_node.get(node.metadata.name, ()), unit_mib) for node in scenario.nodes
    ]


def _with_units(node: Node, pods: Sequence[Pod], unit_mib: int) -> Node:
    """Return a node with the memory units that its agent would advertise.

    That is the number of units that the node's pods request, plus the free memory in units of
    ``unit_mib``.
    """
    inventory = inventory_of(node)
    if inventory is None:
        return node
    allocatable = dict(node.status.allocatable)
    if str(allocatable.get(GPU_MEMORY, "0")) != "0":
        booked_mib: Counter[str] = Counter()
        for pod in pods:
            allocation = _allocation_of(pod)
            for share in allocation.gpus if allocation is not None else ():
                booked_mib[share.uuid] += share.mib
        units = sum(pod_requests(pod.spec).get(GPU_MEMORY, 0) for pod in pods)
        for gpu in inventory.gpus:
            units += max(0, advertised_units(gpu, unit_mib) - -(-booked_mib[gpu.uuid] // unit_mib))
        allocatable[GPU_MEMORY] = str(units)
    changed = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, allocatable=allocatable)
    )
    return with_inventory(changed, msgspec.structs.replace(inventory, unit_mib=unit_mib))


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """How much memory pods with whole GPUs really need, in MiB per GPU."""

    of_workload: Mapping[str, int] = field(default_factory=dict)  # by ``workload_name``
    of_others: int = 0  # for other pods with one GPU

    def of(self, pod: Pod, gpus: int) -> int:
        """Return the MiB that a pod needs on each of its ``gpus``, or 0 if unknown."""
        name = workload_name(owner_of(pod))
        return self.of_workload.get(name, self.of_others if gpus == 1 else 0)


def with_mode(scenario: Scenario, mode: Mode, unit_mib: int, needs: MemoryNeeds) -> None:
    """Set all GPU nodes to a mode. The pods on their GPUs become pending, with equivalent requests.

    In a shared mode, a pod with a whole GPU then requests all memory of a GPU. A pod with a
    time-sliced GPU requests its replica's part of the memory. An amount in ``needs`` replaces these
    amounts. If all GPUs are equal, stored pods that wait for whole or time-sliced GPUs are
    converted too. Nodes that serve their GPUs through claims do not change.
    """
    found = {node.metadata.name: inventory_of(node) for node in scenario.nodes}
    known = {
        name: inventory
        for name, inventory in found.items()
        if inventory is not None and not inventory.claims
    }
    converted, unchanged = list[Pod](), list[Pod]()
    waiting = [*scenario.pending, *scenario.waiting]
    for pod in scenario.bound:
        inventory = None if pod.finished else known.get(pod.spec.node_name)
        allocation = _allocation_of(pod)
        if inventory is not None and allocation is not None:
            converted.append(_in_mode(pod, allocation, inventory, mode, unit_mib, needs))
        elif inventory is not None and not GPU_NAMES.isdisjoint(pod_requests(pod.spec)):
            waiting.append(_unbound(pod))  # its GPUs are unknown
        else:
            unchanged.append(pod)
    kinds = {(gpu.mib, max(each.replicas, 1)) for each in known.values() for gpu in each.gpus}
    converted += (_pending_in_mode(pod, kinds, mode, unit_mib, needs) for pod in waiting)
    scenario.bound, scenario.pending, scenario.waiting = unchanged, converted, []
    scenario.nodes = [
        _node_in_mode(node, known[node.metadata.name], mode, unit_mib)
        if node.metadata.name in known
        else node
        for node in scenario.nodes
    ]


def _in_mode(
    pod: Pod,
    allocation: Allocation,
    inventory: Inventory,
    mode: Mode,
    unit_mib: int,
    needs: MemoryNeeds,
) -> Pod:
    """Return an unbound copy that requests GPUs in ``mode``."""
    total_of = {gpu.uuid: gpu.mib for gpu in inventory.gpus}
    totals = [total_of.get(share.uuid, share.mib) for share in allocation.gpus]
    if not mode.shared:
        resource = TOPOLOGY_GPU if mode is Mode.TOPOLOGY else WHOLE_GPU
        if allocation.whole:
            return with_whole_gpus(_unbound(pod), resource)
        return with_gpus(_unbound(pod), {resource: len(allocation.gpus)})
    count = len({share.uuid for share in allocation.gpus})
    total, booked_mib = min(totals), max(share.mib for share in allocation.gpus)
    percent = max(share.percent for share in allocation.gpus)
    if allocation.whole:
        part = total * len(allocation.gpus) // count // max(inventory.replicas, 1)
        booked_mib, percent = needs.of(pod, count) or max(part // unit_mib, 1) * unit_mib, 0
    most = total // unit_mib
    units = max(1, min(-(-booked_mib // unit_mib), most))
    if mode is Mode.CORE_MEM:
        percent = min(100, -(-(percent or 100 * units // most) // PERCENT_STEP) * PERCENT_STEP)
    return with_shares(_unbound(pod), count, units, percent if mode is Mode.CORE_MEM else 0)


def _pending_in_mode(
    pod: Pod, kinds: set[tuple[int, int]], mode: Mode, unit_mib: int, needs: MemoryNeeds
) -> Pod:
    """Convert a stored pending pod's request for whole or time-sliced GPUs to a shared mode.

    ``kinds`` are the pairs (MiB, replicas) of the cluster's GPUs. Other pods do not change.
    """
    amounts = pod_requests(pod.spec)
    count = amounts.get(WHOLE_GPU, 0) or amounts.get(SHARED_GPU, 0)
    total, replicas = next(iter(kinds)) if len(kinds) == 1 else (0, 1)
    part = total * amounts.get("nvidia.com/gpumem-percentage", 100) // 100 // replicas
    mib = needs.of(pod, count) or amounts.get("nvidia.com/gpumem", 0) or part // unit_mib * unit_mib
    if not (pod.metadata.creation_timestamp and mode.shared and count and mib):
        return pod
    percent = min(100, -(-100 * mib // max(total, mib) // PERCENT_STEP) * PERCENT_STEP)
    return with_shares(pod, count, -(-mib // unit_mib), percent if mode is Mode.CORE_MEM else 0)


def _node_in_mode(node: Node, inventory: Inventory, mode: Mode, unit_mib: int) -> Node:
    """Return a node with the inventory, labels and resources that it would have in a mode."""
    inventory = msgspec.structs.replace(inventory, mode=mode.value, unit_mib=unit_mib, replicas=0)
    offered = {
        name: str(count)
        for name, count in resources_for_mode(mode, inventory.gpus, unit_mib).items()
    }
    others = {
        name: amount for name, amount in node.status.allocatable.items() if name not in GPU_NAMES
    }
    meta = node.metadata
    labels = {**meta.labels, MODE_LABEL: mode.value}
    labels = {
        name: text for name, text in labels.items() if name not in (SHARING_LABEL, REPLICAS_LABEL)
    }
    return with_inventory(
        msgspec.structs.replace(
            node,
            metadata=msgspec.structs.replace(meta, labels=labels),
            status=msgspec.structs.replace(node.status, allocatable=others | offered),
        ),
        inventory,
    )


def _allocation_of(pod: Pod) -> Allocation | None:
    text = pod.metadata.annotations.get(ALLOCATION_ANNOTATION)
    try:
        return decode_allocation(text) if text is not None else None
    except AllocationError:
        return None


@dataclass(slots=True)
class Fit:
    """The number of copies of a set of pods that fit a cluster."""

    pods: int  # the number of pods in the set
    copies: int = 0
    nodes: Counter[str] = field(default_factory=Counter)  # numbers of pods by node
    stopped_by: str = ""  # why the next copy does not fit, or "" if it was not tried


def fit_more(
    simulation: Simulation,
    pods: Sequence[Pod],
    clock_ns: Callable[[], int],
    progress: Callable[[int], None],
) -> Fit:
    """Place copies of the set ``pods`` until a copy does not fit, but at most ``MOST_COPIES``.

    ``progress`` gets the number of copies so far. Copies of a gang are separate gangs.
    """
    result = Fit(len(pods))
    while result.copies < MOST_COPIES:
        placed: list[PodOutcome] = []
        copies = [_copy(pod, result.copies + 1) for pod in pods]
        copied = {copy.metadata.uid: pod for copy, pod in zip(copies, pods, strict=True)}
        for outcome in simulation.decide(copies, clock_ns):
            if outcome.node is None:
                result.stopped_by = f"{copied[outcome.pod.metadata.uid].key}: {outcome.reason}"
                return result
            placed.append(outcome)
        result.copies += 1
        result.nodes.update(outcome.node for outcome in placed if outcome.node is not None)
        progress(result.copies)
    return result


def _copy(pod: Pod, number: int) -> Pod:
    name = f"{pod.metadata.name}-{number}"
    meta = msgspec.structs.replace(
        pod.metadata, name=name, uid=make_uid("copy", pod.metadata.namespace, name)
    )
    return msgspec.structs.replace(pod, metadata=meta)


def selected_nodes(nodes: Iterable[Node], selector: str) -> list[str]:
    """Return the names of the nodes that match ``selector``, in the syntax of kubectl's ``-l``.

    Raises:
        SelectorError: ``selector`` is not a label selector.
        UnknownNode: the selector selects no node.
    """
    wanted, nodes = parse_selector(selector), list(nodes)
    found = [
        node.metadata.name
        for node in nodes
        if selector.strip() and selects(wanted, node.metadata.labels)
    ]
    if not found:
        raise UnknownNode(
            f"no node has the labels {selector[:80]!r}{selector_hint(selector, nodes)}"
        )
    return found


class SelectorError(ValueError):
    """A text is not a label selector. The message names the invalid requirement."""


def parse_selector(text: str) -> LabelSelector:
    """Parse a label selector. An empty text selects everything.

    Raises:
        SelectorError: ``text`` is not a label selector.
    """
    parts = _BETWEEN.split(text) if text.strip() else []
    return LabelSelector(
        match_expressions=tuple(_requirement(text, part.strip()) for part in parts)
    )


def selector_hint(text: str, nodes: Iterable[Node]) -> str:
    """Return a hint at the label or value that the user may have meant, or ""."""
    labels = [node.metadata.labels for node in nodes]
    for requirement in parse_selector(text).match_expressions:
        key = requirement.key
        values = {each[requirement.key] for each in labels if requirement.key in each}
        if not values:
            return nearest(key, {each for known in labels for each in known})
        if requirement.operator == "In" and values.isdisjoint(requirement.values):
            return nearest(requirement.values[0], values)
    return ""


def _requirement(text: str, part: str) -> LabelSelectorRequirement:
    found = _REQUIREMENT.fullmatch(part)
    sign = (found["sign"] or found["set"] or "") if found is not None else ""
    if found is None or (found["absent"] and sign):
        raise _error(text, f"{part[:80]!r} is not a requirement")
    key, operator = found["key"], _OPERATORS.get(sign)
    values = (
        tuple(each.strip() for each in (found["value"] or found["values"] or "").split(","))
        if operator
        else ()
    )
    for why in filter(None, (broken_qualified_name(key), *map(broken_label_value, values))):
        raise _error(text, why)
    return LabelSelectorRequirement(
        key, operator or ("DoesNotExist" if found["absent"] else "Exists"), values
    )


def _error(text: str, why: str) -> SelectorError:
    return SelectorError(f"{text[:80]!r} is not a label selector: {why}; {_GRAMMAR}")
