"""Computes how many nodes of which type pods without a place need.

It also tells how many of them an autoscaler adds unasked.

An autoscaler adds up what pods ask of a node, and knows no GPUs. It believes that a pod fits a node whose GPUs have
enough free in sum. So it adds nodes for some of the pods without a place by itself, and for others only if asked.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputile.api.config.v1alpha1 import Configuration
from gputile.core.devices.node_type import NodeType
from gputile.core.devices.node_type_refusal import NodeTypeRefusal, NodeTypeRule
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import Assumed, NodeApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.placement_engine import PlacementEngine

BarredTypes = Mapping[tuple[str, str], NodeTypeRefusal]
"""By the UID of a pod and the name of a type: why no such node is to be added for it."""


@dataclass(frozen=True, slots=True)
class NewNodes:
    """``counts`` has the number of nodes to be added of each type, without the starting ones.

    ``types`` names the type that a pod is to go to, by UID; ``on_starting`` has the UIDs of those that starting nodes
    take. ``refused`` says of a pod that no type can take why not, by the types' names.
    A pod in neither came when there were as many nodes as there may be.
    """

    counts: Counter[str] = field(default_factory=Counter)
    types: dict[str, str] = field(default_factory=dict)
    on_starting: set[str] = field(default_factory=set)
    refused: dict[str, Mapping[str, NodeTypeRefusal]] = field(default_factory=dict)


def new_nodes(
    pods: Sequence[GangCandidate],
    types: Sequence[NodeType],
    starting: Mapping[str, int],
    configuration: Configuration,
    barred: BarredTypes,
) -> Steps[NewNodes]:
    """Return, in steps, which nodes take all of ``pods``, GPU by GPU; a type that comes first is preferred.

    ``starting`` is how many nodes of each type are there without having reported their GPUs: pods go there first.
    At most ``autoscaling.mostNodes`` nodes are added.
    """
    site = _Site(types, configuration, barred)
    return (yield from _packed(site, pods, starting, configuration.autoscaling.most_nodes))


def nodes_unasked(
    pods: Sequence[GangCandidate], types: Sequence[NodeType], predicates: Predicates, configuration: Configuration
) -> Steps[Counter[str]]:
    """Return, in steps, how many nodes of each type an autoscaler adds that sees ``pods`` and the sums of nodes.

    ``predicates`` has the nodes that there are, and is as before afterwards.
    """
    placed: list[str] = []
    seen: list[GangCandidate] = []
    try:
        for each in sorted(pods, key=_age):
            yield from predicates.prepare(each.pod)
            name = next((name for name, reason in predicates.reasons(each.pod).items() if reason is None), None)
            if name is None:
                seen.append(each)
                continue
            predicates.place(each.pod, name)
            placed.append(each.pod.metadata.uid)
    finally:
        for uid in placed:
            predicates.remove(uid)
    site = _Site(types, configuration)
    found = yield from _packed(site, seen, {}, configuration.autoscaling.most_nodes)
    return found.counts


def _packed(site: "_Site", pods: Sequence[GangCandidate], starting: Mapping[str, int], most: int) -> Steps[NewNodes]:
    """Put each pod on the first node that takes it, the hardest ones first, and add a node where none does."""
    found = NewNodes()
    there = {site.add(kind) for kind in site.types for _ in range(min(starting.get(kind.name, 0), most))}
    for each in sorted(pods, key=_hardness):
        uid = each.pod.metadata.uid
        place = yield from site.put_on_a_node(each)
        if place is None and found.counts.total() < most:
            place = yield from site.put_on_a_new_node(each)
            if place is None:
                found.refused[uid] = site.refusals(each)
                continue
            found.counts[site.type_of(place)] += 1
        if place is not None:
            found.types[uid] = site.type_of(place)
            if place in there:
                found.on_starting.add(uid)
    return found


def _hardness(each: GangCandidate) -> tuple[bool, int, int, int, tuple[str, str]]:
    shape = each.request.shape if each.request else None
    if shape is None:
        return True, 0, 0, 0, _age(each)
    return False, -shape.gpus, -shape.mib * shape.gpus, -shape.percent, _age(each)


def _age(each: GangCandidate) -> tuple[str, str]:
    return each.pod.metadata.creation_timestamp or "", each.pod.metadata.uid


class _Site:
    """Nodes that do not exist yet, and the pods on them. Without ``barred`` only the sums of a node count."""

    def __init__(
        self,
        types: Sequence[NodeType],
        configuration: Configuration,
        barred: BarredTypes | None = None,
    ) -> None:
        self.types = types
        self._ledger = Ledger(configuration)
        self._engine = PlacementEngine(self._ledger, prices_later=True)
        self._predicates = Predicates(())
        self._barred = barred
        self._nodes: dict[str, NodeType] = {}

    def add(self, kind: NodeType) -> str:
        """Add an empty node, and return its name."""
        name = f"new-{len(self._nodes)}"
        node = kind.node(name)
        self._ledger.apply(NodeApplied(node))
        self._predicates.put_node(node)
        self._nodes[name] = kind
        return name

    def type_of(self, name: str) -> str:
        """Return the name of a node's type."""
        return self._nodes[name].name

    def put_on_a_node(self, each: GangCandidate) -> Steps[str | None]:
        """Put a pod on the first node that takes it; return its name, None where none does."""
        yield from self._predicates.prepare(each.pod)
        open_nodes = [name for name, reason in self._predicates.reasons(each.pod).items() if reason is None]
        for name in open_nodes:
            if self._put(each, name):
                return name
            yield
        return None

    def put_on_a_new_node(self, each: GangCandidate) -> Steps[str | None]:
        """Put a pod on a new node of the first type that could take it; return its name, None where none could."""
        for kind in self.types:
            if self._refusal(each, kind) is not None:
                continue
            name = self.add(kind)
            reason = yield from self._predicates.reason(each.pod, name)
            if reason is None and self._put(each, name):
                return name
            self._predicates.drop_node(name)
        return None

    def refusals(self, each: GangCandidate) -> Mapping[str, NodeTypeRefusal]:
        """Return why no type can take a pod, by the types' names."""
        other = NodeTypeRefusal(NodeTypeRule.OTHER_PODS)
        return {kind.name: self._refusal(each, kind) or other for kind in self.types}

    def _refusal(self, each: GangCandidate, kind: NodeType) -> NodeTypeRefusal | None:
        if self._barred is not None and each.request is not None:
            refusal = kind.refusal(each.request)
            if refusal is not None:
                return refusal
        if static_reason(each.pod.spec, kind.node("new")) is not None:
            return NodeTypeRefusal(NodeTypeRule.LABELS)
        return (self._barred or {}).get((each.pod.metadata.uid, kind.name))

    def _put(self, each: GangCandidate, name: str) -> bool:
        request = each.request
        if request is not None and self._barred is not None:
            decision = self._engine.decide(request, name, 0)
            if not isinstance(decision, Decision):
                return False
            booking = decision.booking(each.pod, request, 0.0)
            if booking is not None:
                self._ledger.apply(Assumed(booking))
        self._predicates.place(each.pod, name)
        return True
