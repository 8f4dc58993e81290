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

    ``starting`` are young nodes that are not usable yet; a node is ``usable`` while its GPUs are all healthy and open
    to pods. ``joined`` counts the nodes that have come since the last look. ``idle`` are those on which an autoscaler
    would put a placeholder: no pod runs there but those of DaemonSets and of kube-system, and they are starting, or
    offer all that is described. Karpenter regards nodes as starting that are ``starting_for_karpenter``, of any age.
    ``failure`` tells of a node that has not become usable in time, or went away too early, since the last look.
    """

    starting: int = 0
    joined: int = 0
    idle: set[str] = field(default_factory=set)
    starting_for_karpenter: set[str] = field(default_factory=set)
    usable: list[str] = field(default_factory=list)
    failure: Refusal[NodeTypeRule] | None = None


class NodesByType:
    """``wait_ns`` is how long a node is young. Between two looks it remembers which nodes were there, and young."""

    def __init__(self, types: Sequence[NodeType], wait_ns: int) -> None:
        self._types, self._wait_ns = types, wait_ns
        self._known: set[str] | None = None  # UIDs of nodes at the last look; None before the first one
        self._young: dict[str, str] = {}  # nodes without a pod that has got GPUs there, and their types

    def forget(self) -> None:
        self._known, self._young = None, {}

    def sort(self, state: ClusterState, awaited: Collection[str]) -> dict[str, TypeNodes]:
        """Return the nodes by the names of their types; ``awaited`` are those of which nodes were asked for."""
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
    """Return whether no pod is bound to a node that keeps placeholders away (``placeholders``)."""
    return not any(
        pod.spec.node_name and pod.metadata.namespace != "kube-system" and DAEMON_LABEL not in pod.metadata.labels
        for pod in state.placement.predicates.pods_on(name)
    )


def _is_starting_for_karpenter(node: Node) -> bool:
    """Return whether Karpenter takes a node for one that will offer all that is described, however long it has not."""
    labels = node.metadata.labels
    return KARPENTER_POOL_LABEL in labels and labels.get(KARPENTER_INITIALIZED_LABEL) != "true"


def _offers(node: Node, kind: NodeType) -> bool:
    allocatable = node_allocatable(node)
    return all(allocatable.get(name, 0) >= count for name, count in kind.resources.items())


def _usable(node: Node, kind: NodeType, info: NodeInfo) -> bool:
    """Return whether the node's GPUs are all healthy, and whether it is as open to pods as its type is described."""
    described = {(taint.key, taint.effect) for taint in kind.taints}
    closed = any(
        taint.effect in _HARD and taint.key != WHOLE_GPU and (taint.key, taint.effect) not in described
        for taint in node.spec.taints
    )
    return not info.closed and not closed and all(gpu.healthy for gpu in info.inventory.gpus)
