"""Classifies the nodes of types that an autoscaler adds: starting, idle, usable. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gputile.api.conversion import unix_seconds
from gputile.api.core import Node, Pod
from gputile.api.well_known import DAEMON_LABEL, KARPENTER_INITIALIZED_LABEL, KARPENTER_POOL_LABEL, WHOLE_GPU
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.node_type import NodeType
from gputile.core.kube_predicates.pod_requests import node_allocatable

_SECOND: Final = 10**9
_HARD: Final = ("NoSchedule", "NoExecute")


@dataclass(slots=True)
class TypeNodes:
    """The nodes of one type.

    ``starting`` counts young nodes that are not usable yet; a node is ``usable`` while all its GPUs are healthy and
    open to pods. ``idle`` are the nodes on which an autoscaler would put a placeholder: they run only pods of
    DaemonSets and of kube-system, and are starting or offer all resources of the type. Karpenter regards the nodes in
    ``starting_for_karpenter`` as starting, whatever their age. ``newest_ns`` is when the newest node was created.
    """

    starting: int = 0
    idle: set[str] = field(default_factory=set)
    starting_for_karpenter: set[str] = field(default_factory=set)
    usable: list[str] = field(default_factory=list)
    newest_ns: int = 0


def nodes_by_type(state: ClusterState, types: Sequence[NodeType], wait_ns: int) -> dict[str, TypeNodes]:
    """Return the nodes by the names of their types; a node is young for ``wait_ns`` from its creation on."""
    found = {kind.name: TypeNodes() for kind in types}
    for name, node in state.nodes.items():
        kind = next((kind for kind in types if kind.has(node)), None)
        if kind is None:
            continue
        nodes = found[kind.name]
        created_ns = int(unix_seconds(node.metadata.creation_timestamp) * _SECOND)
        nodes.newest_ns = max(nodes.newest_ns, created_ns)
        usable = _is_usable(state, node, kind)
        unused = all(booking.reserved for booking in state.ledger.on_node(name))
        starting = unused and not usable and state.now_ns - created_ns < wait_ns
        labels = node.metadata.labels
        # Karpenter expects these nodes to offer all resources of the type later.
        if KARPENTER_POOL_LABEL in labels and labels.get(KARPENTER_INITIALIZED_LABEL) != "true":
            nodes.starting_for_karpenter.add(name)
        if usable:
            nodes.usable.append(name)
        nodes.starting += starting
        if usable:
            allocatable = node_allocatable(node)
            has_room = all(allocatable.get(resource, 0) >= count for resource, count in kind.resources.items())
        else:
            has_room = starting or (unused and name in nodes.starting_for_karpenter)
        on_node = state.placement.predicates.pods_on(name)
        if has_room and not any(pod.spec.node_name and _keeps_placeholders_away(pod) for pod in on_node):
            nodes.idle.add(name)
    return found


def _keeps_placeholders_away(pod: Pod) -> bool:
    return pod.metadata.namespace != "kube-system" and DAEMON_LABEL not in pod.metadata.labels


def _is_usable(state: ClusterState, node: Node, kind: NodeType) -> bool:
    """Return whether the node is open to pods, with healthy GPUs and no hard taints but those of its type."""
    info = state.ledger.info_of(node.metadata.name)
    if info is None or info.closed or not info.inventory.gpus:
        return False
    described = {(taint.key, taint.effect) for taint in kind.taints}
    closed = any(
        taint.effect in _HARD and taint.key != WHOLE_GPU and (taint.key, taint.effect) not in described
        for taint in node.spec.taints
    )
    return not closed and all(gpu.healthy for gpu in info.inventory.gpus)
