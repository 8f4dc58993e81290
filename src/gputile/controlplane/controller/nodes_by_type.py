"""Sorts the nodes of the types that an autoscaler adds: starting, idle, usable or failed.

No I/O, no clock. A node is young for as long as it may take from its creation until its GPUs are there for pods. If
that takes longer, or if a young node goes away before a pod has got its GPUs, its type has failed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from gputile.api.conversion import unix_seconds
from gputile.api.core import Node
from gputile.api.well_known import DAEMON_LABEL, KARPENTER_INITIALIZED_LABEL, KARPENTER_POOL_LABEL, WHOLE_GPU
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.node_type import NodeType
from gputile.core.kube_predicates.pod_requests import node_allocatable
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by

_SECOND: Final = 10**9
_HARD: Final = ("NoSchedule", "NoExecute")


@dataclass(slots=True)
class TypeNodes:
    """The nodes of one type.

    ``starting`` counts young nodes that are not usable yet; a node is ``usable`` while all its GPUs are healthy and
    open to pods. ``joined`` counts the nodes that are new since the last round. An autoscaler would put a placeholder
    on the ``idle`` ones: they run only pods of DaemonSets and of kube-system, and are starting or offer all that is
    described. Karpenter regards the nodes in ``starting_for_karpenter`` as starting, whatever their age. ``failure`` is
    about a node that did not become usable in time, or went away too early, since the last round.
    """

    starting: int = 0
    joined: int = 0
    idle: set[str] = field(default_factory=set)
    starting_for_karpenter: set[str] = field(default_factory=set)
    usable: list[str] = field(default_factory=list)
    failure: Refusal[NodeTypeRule] | None = None


class NodesByType:
    """``wait_ns`` is how long a node is young. Remembers the nodes, and the young ones, from round to round."""

    def __init__(self, types: Sequence[NodeType], wait_ns: int) -> None:
        self._types, self._wait_ns = types, wait_ns
        self._known: set[str] | None = None  # UIDs of the nodes in the last round; None before the first one
        self._young: dict[str, str] = {}  # young nodes without a GPU pod, and their types

    def forget(self) -> None:
        self._known, self._young = None, {}

    def sort(self, state: ClusterState, awaited: Collection[str]) -> dict[str, TypeNodes]:
        """Return the nodes by type; ``awaited`` are the types of which nodes were requested."""
        found = {kind.name: TypeNodes() for kind in self._types}
        before, self._young = self._young, {}
        for name, node in state.nodes.items():
            kind = next((kind for kind in self._types if kind.has(node)), None)
            if kind is not None:
                is_new = self._known is not None and node.metadata.uid not in self._known
                found[kind.name].joined += is_new
                self._sort_in(state, node, kind, found[kind.name], was_young=is_new or name in before)
        for name, type_name in before.items():
            if name not in state.nodes and type_name in awaited:
                found[type_name].failure = refusal_by(NodeTypeRule.WENT_AWAY, node=name)
        self._known = {node.metadata.uid for node in state.nodes.values()}
        return found

    def _sort_in(self, state: ClusterState, node: Node, kind: NodeType, nodes: TypeNodes, *, was_young: bool) -> None:
        name, info = node.metadata.name, state.ledger.info_of(node.metadata.name)
        bare = info is None or not info.inventory.gpus
        usable = info is not None and not bare and _usable(node, kind, info)
        unused = all(booking.reserved for booking in state.ledger.on_node(name))
        is_young = state.now_ns - unix_seconds(node.metadata.creation_timestamp) * _SECOND < self._wait_ns
        starting = is_young and not usable and unused
        if is_young and unused:
            self._young[name] = kind.name
        if _is_starting_for_karpenter(node):
            nodes.starting_for_karpenter.add(name)
        if usable:
            nodes.usable.append(name)
        elif was_young and unused and not is_young:
            rule = NodeTypeRule.NO_INVENTORY if bare else NodeTypeRule.NOT_USABLE
            nodes.failure = refusal_by(rule, node=name)
        nodes.starting += starting
        has_room = _offers(node, kind) if usable else starting or (unused and name in nodes.starting_for_karpenter)
        if has_room and _is_vacant(state, name):
            nodes.idle.add(name)


def _is_vacant(state: ClusterState, name: str) -> bool:
    """Return whether no pod on a node keeps placeholders away (``placeholders``)."""
    return not any(
        pod.spec.node_name and pod.metadata.namespace != "kube-system" and DAEMON_LABEL not in pod.metadata.labels
        for pod in state.placement.predicates.pods_on(name)
    )


def _is_starting_for_karpenter(node: Node) -> bool:
    """Return whether Karpenter still expects a node to offer all that is described."""
    labels = node.metadata.labels
    return KARPENTER_POOL_LABEL in labels and labels.get(KARPENTER_INITIALIZED_LABEL) != "true"


def _offers(node: Node, kind: NodeType) -> bool:
    allocatable = node_allocatable(node)
    return all(allocatable.get(name, 0) >= count for name, count in kind.resources.items())


def _usable(node: Node, kind: NodeType, info: NodeInfo) -> bool:
    """Return whether all GPUs of the node are healthy, and its taints are those of the type's description."""
    described = {(taint.key, taint.effect) for taint in kind.taints}
    closed = any(
        taint.effect in _HARD and taint.key != WHOLE_GPU and (taint.key, taint.effect) not in described
        for taint in node.spec.taints
    )
    return not info.closed and not closed and all(gpu.healthy for gpu in info.inventory.gpus)
