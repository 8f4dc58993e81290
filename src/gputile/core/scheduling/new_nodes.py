"""Computes which new nodes pending pods need, and which of these an autoscaler adds by itself.

An autoscaler compares requests with the total resources of a node, not with single GPUs. It assumes
that a pod fits a node whose GPUs have enough free in total. It adds nodes only for pods that fit no
node in this way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeStatus, Pod
from gputile.core.devices.node_type import NodeType
from gputile.core.devices.request import Request
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.pod_requests import insufficient, node_allocatable, pod_requests
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by
from gputile.core.scheduling.gang_plan import GangCandidate, hardness
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

BarredTypes = Mapping[tuple[str, str], Refusal[NodeTypeRule]]
"""The reason not to add a node of a type for a pod, by the pod's UID and the type's name."""


@dataclass(frozen=True, slots=True)
class NewNodes:
    """The nodes to add for pending pods."""

    counts: Counter[str] = field(default_factory=Counter)  # by type, without starting nodes
    types: dict[str, str] = field(default_factory=dict)  # the node type for each pod, by UID
    on_new: set[str] = field(default_factory=set)  # the UIDs of pods that fit no starting node
    # The reasons for each pod that fits no type, by UID and type
    refused: dict[str, Mapping[str, Refusal[NodeTypeRule]]] = field(default_factory=dict)


def new_nodes(
    pods: Sequence[GangCandidate],
    types: Sequence[NodeType],
    starting: Mapping[str, int],
    configuration: Configuration,
    barred: BarredTypes,
) -> NewNodes:
    """Return the nodes to add so that ``pods`` fit, GPU by GPU. Earlier types are preferred.

    ``starting`` maps the name of a type to its number of nodes that have not reported their GPUs
    yet. Pods are placed on these nodes first. ``barred`` has the types to exclude for each pod.
    """
    return _pack(_PlannedNodes(types, configuration, barred), pods, starting)


def nodes_added_by_autoscaler(
    pods: Iterable[GangCandidate],
    types: Sequence[NodeType],
    configuration: Configuration,
    barred: BarredTypes,
) -> Counter[str]:
    """Return, by type, how many nodes an autoscaler is about to add for ``pods``.

    Pass only pods that fit no existing node, even if only the nodes' totals are compared.
    """
    # Other reasons are ignored
    unfit = {key: why for key, why in barred.items() if why.rule is NodeTypeRule.TOO_LITTLE}
    return _pack(_PlannedNodes(types, configuration, unfit, by_sums=True), pods, {}).counts


def expected_nodes(
    pods: Iterable[GangCandidate],
    nodes: Predicates,
    reserved: Iterable[Pod],
    starting: Mapping[str, Node],
) -> dict[str, str]:
    """Return the node on which an autoscaler expects each of ``pods``, by UID.

    A starting node is chosen only if the pod fits no other node. An autoscaler ignores the
    reservations of the pods ``reserved``. It counts the nodes in ``starting`` with all resources
    that they will have (``as_described``).
    """
    nodes, places = nodes.snapshot(), dict[str, str]()
    for pod in reserved:
        nodes.remove(pod.metadata.uid)
    for node in starting.values():
        nodes.set_node(node)

    def age(each: GangCandidate) -> tuple[str, str]:
        return each.pod.metadata.creation_timestamp or "", each.pod.metadata.uid

    for each in sorted(pods, key=age):
        names = nodes.open_nodes(each.pod)
        if names:
            places[each.pod.metadata.uid] = min(names, key=starting.__contains__)
            nodes.place(each.pod, places[each.pod.metadata.uid])
    return places


def as_described(node: Node, kind: NodeType) -> Node:
    """Return a starting node as it will be when it is complete.

    The result has all labels and resources that the node's type describes. Taints that the type
    does not describe are removed. A cordoned node stays cordoned.
    """
    whole, amounts = kind.node(node.metadata.name), node_allocatable(node)
    offered = {name: text for name, text in node.status.allocatable.items() if amounts.get(name)}
    resources = {**whole.status.allocatable, **offered}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            node.metadata, labels={**whole.metadata.labels, **node.metadata.labels}
        ),
        spec=msgspec.structs.replace(node.spec, taints=whole.spec.taints),
        status=NodeStatus(capacity=resources, allocatable=resources),
    )


def _pack(
    site: "_PlannedNodes", pods: Iterable[GangCandidate], starting: Mapping[str, int]
) -> NewNodes:
    """Place each pod, hardest first, on the first node that accepts it, or on a new node."""
    found = NewNodes()
    existing = {site.add(kind) for kind in site.types for _ in range(starting.get(kind.name, 0))}
    for each in sorted(pods, key=hardness):
        uid = each.pod.metadata.uid
        name = site.place_on_existing(each)
        if name is None:
            whys = {kind.name: site.refusal(each, kind) for kind in site.types}
            name = site.place_on_new(each, [kind for kind in site.types if whys[kind.name] is None])
            if name is None:
                other = refusal_by(NodeTypeRule.OTHER_PODS)
                found.refused[uid] = {type_name: why or other for type_name, why in whys.items()}
                continue
            found.counts[site.type_of(name)] += 1
        found.types[uid] = site.type_of(name)
        if name not in existing:
            found.on_new.add(uid)
    return found


class _PlannedNodes:
    """Planned nodes with pods on them. ``by_sums`` states that only a node's totals are checked."""

    def __init__(
        self,
        types: Sequence[NodeType],
        configuration: Configuration,
        barred: BarredTypes,
        *,
        by_sums: bool = False,
    ) -> None:
        self.types = types
        self._ledger = Ledger(configuration)
        self._engine = PlacementEngine(self._ledger, prices_later=True)
        self._predicates = Predicates(())
        self._barred, self._by_sums = barred, by_sums
        self._nodes: dict[str, NodeType] = {}
        self._full: set[tuple[Request, str]] = set()  # nodes never get emptier
        self._new = {kind.name: kind.node("new") for kind in types}
        self._offered = {name: node_allocatable(node) for name, node in self._new.items()}

    def add(self, kind: NodeType) -> str:
        name = f"new-{len(self._nodes)}"
        node = kind.node(name)
        self._ledger.apply_node(node)
        self._predicates.set_node(node)
        self._nodes[name] = kind
        return name

    def type_of(self, name: str) -> str:
        return self._nodes[name].name

    def place_on_existing(self, each: GangCandidate) -> str | None:
        """Place a pod on the first node that accepts it. Return the node's name, or None."""
        for name in self._predicates.open_nodes(each.pod):
            if self._place(each, name):
                return name
        return None

    def place_on_new(self, each: GangCandidate, types: Iterable[NodeType]) -> str | None:
        """Place a pod on a new node of the first type that accepts it. Return its name, or None."""
        for kind in types:
            name = self.add(kind)
            if self._predicates.reason(each.pod, name) is None and self._place(each, name):
                return name
            self._predicates.drop_node(name)
        return None

    def refusal(self, each: GangCandidate, kind: NodeType) -> Refusal[NodeTypeRule] | None:
        """Return why even an empty node of the type cannot run the pod, or None."""
        if not self._by_sums and each.request is not None:
            refusal = kind.refusal(each.request)
            if refusal is not None:
                return refusal
        if static_reason(each.pod.spec, self._new[kind.name]) is not None:
            return refusal_by(NodeTypeRule.LABELS)
        lacking = next(
            insufficient(pod_requests(each.pod.spec), {}, self._offered[kind.name]), None
        )
        if lacking is not None:
            return refusal_by(NodeTypeRule.TOO_FEW_RESOURCES, wanted=lacking.text)
        return self._barred.get((each.pod.metadata.uid, kind.name))

    def _place(self, each: GangCandidate, name: str) -> bool:
        request = each.request
        barred = self._barred.get((each.pod.metadata.uid, self.type_of(name)))
        if barred is not None and barred.rule is not NodeTypeRule.PAUSED:
            return False  # existing nodes of the type show that a new node would be too small
        if request is not None and not self._by_sums:
            if (request, name) in self._full:
                return False
            decision = self._engine.decide(request, name, 0)
            if not isinstance(decision, Decision):
                self._full.add((request, name))
                return False
            booking = decision.booking(each.pod, request, 0.0)
            if booking is not None:
                self._ledger.assume(booking)
        self._predicates.place(each.pod, name)
        return True
