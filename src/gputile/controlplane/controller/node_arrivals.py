"""Follows the nodes of the types that an autoscaler adds, from their joining until they are of use.

No I/O, no clock. A node counts as starting while its GPUs are not there for pods. If that lasts too long, or if it goes
away before a pod has got its GPUs, its type has failed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gputile.api.core import Node
from gputile.api.well_known import DAEMON_LABEL, KARPENTER_INITIALIZED_LABEL, KARPENTER_POOL_LABEL, WHOLE_GPU
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.node_type import NodeType
from gputile.core.kube_predicates.pod_requests import node_allocatable
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by

_HARD: Final = ("NoSchedule", "NoExecute")


@dataclass(slots=True)
class TypeNodes:
    """The nodes of one type: how many are starting, and those whose GPUs are all healthy and open to pods.

    ``joined`` is how many have come since the last look: one that only takes on the type's label does not, since the
    kubelet of a node may set most of its labels. ``idle`` are those on which an autoscaler would put a
    placeholder: no pod runs there but those of DaemonSets and of kube-system, and they are starting, or offer all that
    is described. Karpenter takes those for starting that are ``starting_for_karpenter``, however long they do not.
    ``failures`` tell of nodes that have been starting for too long, or went away too early, since the last look.
    """

    starting: int = 0
    joined: int = 0
    idle: set[str] = field(default_factory=set)
    starting_for_karpenter: set[str] = field(default_factory=set)
    usable: list[str] = field(default_factory=list)
    failures: list[Refusal[NodeTypeRule]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A node that has joined, and is not known to be of use: its type, since when (Unix time, ns), and whether bare.

    ``strayed``: it has not had the type's label any more since.
    """

    type_name: str
    since_ns: int
    bare: bool
    strayed: bool = False


class NodeArrivals:
    """What each look at the nodes remembers for the next one; ``wait_ns`` is how long a node may be starting."""

    def __init__(self, types: Sequence[NodeType], wait_ns: int) -> None:
        self._types, self._wait_ns = types, wait_ns
        self._arrivals: dict[str, _Arrival] = {}
        self._given_up: set[str] = set()  # arrivals that are of no use, as far as one can tell
        self._known: set[str] | None = None  # the UIDs of nodes that were there at the first look, or have joined since
        self._failed: set[str] = set()  # the UIDs of nodes that count as a failure: each does once
        self._joined: dict[str, int] = {}  # the nodes that have joined since the first look, and when (Unix ns)

    def forget(self) -> None:
        self._arrivals, self._known, self._joined = {}, None, {}

    def joined_ns(self, name: str) -> int:
        """Return when a node has joined, Unix time in ns; 0 for one that was there before somebody needed one."""
        return self._joined.get(name, 0)

    def look(self, state: ClusterState, awaited: Collection[str]) -> dict[str, TypeNodes]:
        """Return the nodes by the names of their types.

        ``awaited`` are the types of which nodes have been asked for, for pods that have no place yet: only their nodes
        have to be of use soon. Of the others those are starting that have reported no GPUs.
        """
        found = {kind.name: TypeNodes() for kind in self._types}
        before, self._arrivals = self._arrivals, {}
        nodes, now_ns = state.nodes, state.now_ns
        uids = {node.metadata.uid for node in nodes.values()}
        known = uids if self._known is None else self._known & uids
        for name, node in nodes.items():
            kind = next((kind for kind in self._types if kind.has(node)), None)
            if kind is None:
                if name in before:  # its label may come back, and it is no new arrival then
                    self._arrivals[name] = replace(before[name], strayed=True)
                continue
            joined = node.metadata.uid not in known
            found[kind.name].joined += joined
            if joined:
                known.add(node.metadata.uid)
                self._joined[name] = now_ns
            is_awaited = (joined or name in before) and kind.name in awaited
            self._judge(state, node, kind, found[kind.name], before.get(name), is_awaited=is_awaited)
        for name, arrival in before.items():
            counts = (arrival.bare or arrival.type_name in awaited) and not arrival.strayed
            if name not in nodes and name not in self._given_up and counts:
                found[arrival.type_name].failures.append(refusal_by(NodeTypeRule.WENT_AWAY, node=name))
        self._given_up &= self._arrivals.keys()
        self._known = known
        self._failed &= uids
        self._joined = {name: at_ns for name, at_ns in self._joined.items() if name in nodes}
        return found

    def _judge(
        self,
        state: ClusterState,
        node: Node,
        kind: NodeType,
        nodes: TypeNodes,
        before: _Arrival | None,
        *,
        is_awaited: bool,
    ) -> None:
        name, ledger, now_ns = node.metadata.name, state.ledger, state.now_ns
        info = ledger.info_of(name)
        bare = info is None or not info.inventory.gpus
        usable = info is not None and not bare and _usable(node, kind, info)
        if _is_starting_for_karpenter(node):
            nodes.starting_for_karpenter.add(name)
        if usable:
            nodes.usable.append(name)
            if _is_vacant(state, name) and _offers(node, kind):
                nodes.idle.add(name)
        if not bare and (not is_awaited or any(not booking.reserved for booking in ledger.on_node(name))):
            return
        arrival = _Arrival(kind.name, before.since_ns if before is not None else now_ns, bare)
        late = now_ns - arrival.since_ns >= self._wait_ns
        if usable and late:
            return
        self._arrivals[name] = arrival
        if usable:
            return
        if late and name not in self._given_up:
            self._given_up.add(name)
            rule = NodeTypeRule.NO_INVENTORY if bare else NodeTypeRule.NOT_USABLE
            if node.metadata.uid not in self._failed:
                nodes.failures.append(refusal_by(rule, node=name))
            self._failed.add(node.metadata.uid)
        if name not in self._given_up:
            nodes.starting += 1
        if _is_vacant(state, name) and (name not in self._given_up or name in nodes.starting_for_karpenter):
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
