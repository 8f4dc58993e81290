"""Computes which new nodes pods without a place need, and which an autoscaler adds by itself.

An autoscaler adds up what pods ask of a node, and knows no GPUs. It believes that a pod fits a node whose GPUs have
enough free in sum, and adds nodes for the pods that fit none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeStatus, Pod
from gputile.core.devices.node_type import NodeType
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.pod_requests import insufficient, node_allocatable, pod_requests
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import Assumed, NodeApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

_OF_NODES_THERE = (NodeTypeRule.NOT_AS_DESCRIBED, NodeTypeRule.TOO_LITTLE)
BarredTypes = Mapping[tuple[str, str], Refusal[NodeTypeRule]]
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
    refused: dict[str, Mapping[str, Refusal[NodeTypeRule]]] = field(default_factory=dict)


def new_nodes(
    pods: Sequence[GangCandidate],
    types: Sequence[NodeType],
    starting: Mapping[str, int],
    configuration: Configuration,
    barred: BarredTypes,
    *,
    most: int | None = None,
) -> NewNodes:
    """Return which nodes take ``pods``, GPU by GPU; a type that comes first is preferred.

    ``starting`` is how many nodes of each type are there without having reported their GPUs: pods go there first.
    At most ``most`` nodes are added, or ``autoscaling.mostNodes``; if more are needed, the pods in front get them.
    """
    limit = configuration.autoscaling.most_nodes if most is None else most
    found = _packed(_Site(types, configuration, barred), pods, starting, limit)
    if len(found.types) + len(found.refused) == len(pods):
        return found
    in_order = _packed(_Site(types, configuration, barred), pods, starting, limit, in_order=True)
    first = [each for each in pods if each.pod.metadata.uid in in_order.types]
    found = _packed(_Site(types, configuration, barred), first, starting, limit)
    found.refused.update(in_order.refused)
    return found if len(found.types) == len(first) else in_order


def nodes_by_sums(
    pods: Sequence[GangCandidate], types: Sequence[NodeType], configuration: Configuration, barred: BarredTypes
) -> Counter[str]:
    """Return which nodes take all of ``pods`` in the eyes of one who adds up what a node has."""
    site = _Site(types, configuration, barred, by_sums=True)
    found = _packed(site, pods, {}, configuration.autoscaling.most_nodes)
    return found.counts


def _packed(
    site: "_Site",
    pods: Sequence[GangCandidate],
    starting: Mapping[str, int],
    most: int,
    *,
    in_order: bool = False,
) -> NewNodes:
    """Put each pod on the first node that takes it, and add a node where none does; the hardest pods come first.

    With ``in_order`` they come as they are.
    """
    found = NewNodes()
    there = {site.add(kind) for kind in site.types for _ in range(min(starting.get(kind.name, 0), most))}
    for each in pods if in_order else sorted(pods, key=_hardness):
        uid = each.pod.metadata.uid
        place = site.put_on_a_node(each)
        if place is None and (why := site.refused(each)) is not None:
            found.refused[uid] = why
            continue
        if place is None and found.counts.total() < most:
            place = site.put_on_a_new_node(each)
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
        return True, 0, 0, 0, by_age(each)
    return False, -shape.gpus, -shape.mib * shape.gpus, -shape.percent, by_age(each)


def by_age(each: GangCandidate) -> tuple[str, str]:
    return each.pod.metadata.creation_timestamp or "", each.pod.metadata.uid


class _Site:
    """Nodes that do not exist yet, and the pods on them; ``by_sums`` tells that only the sums of a node count."""

    def __init__(
        self, types: Sequence[NodeType], configuration: Configuration, barred: BarredTypes, *, by_sums: bool = False
    ) -> None:
        self.types = types
        self._ledger = Ledger(configuration)
        self._engine = PlacementEngine(self._ledger, prices_later=True)
        self._predicates = Predicates(())
        self._barred, self._by_sums = barred, by_sums
        self._nodes: dict[str, NodeType] = {}
        self._new = {kind.name: kind.node("new") for kind in types}
        self._offered = {name: node_allocatable(node) for name, node in self._new.items()}

    def add(self, kind: NodeType) -> str:
        name = f"new-{len(self._nodes)}"
        node = kind.node(name)
        self._ledger.apply(NodeApplied(node))
        self._predicates.put_node(node)
        self._nodes[name] = kind
        return name

    def type_of(self, name: str) -> str:
        return self._nodes[name].name

    def put_on_a_node(self, each: GangCandidate) -> str | None:
        """Put a pod on the first node that takes it; return its name, None where none does."""
        open_nodes = self._predicates.open_nodes(each.pod)
        for name in open_nodes:
            if not self._is_too_small(each, name) and self._put(each, name):
                return name
        return None

    def _is_too_small(self, each: GangCandidate, name: str) -> bool:
        """Return whether nodes of the type that are there show that a node is less than is described."""
        why = self._barred.get((each.pod.metadata.uid, self._nodes[name].name))
        return why is not None and why.rule in _OF_NODES_THERE

    def put_on_a_new_node(self, each: GangCandidate) -> str | None:
        """Put a pod on a new node of the first type that could take it; return its name, None where none could."""
        for kind in self.types:
            if self._refusal(each, kind) is not None:
                continue
            name = self.add(kind)
            reason = self._predicates.reason(each.pod, name)
            if reason is None and self._put(each, name):
                return name
            self._predicates.drop_node(name)
        return None

    def refused(self, each: GangCandidate) -> Mapping[str, Refusal[NodeTypeRule]] | None:
        """Return why no type can take a pod whatever other pods there are, by the types' names; None where one may."""
        found = {kind.name: why for kind in self.types if (why := self._refusal(each, kind)) is not None}
        return found if len(found) == len(self.types) else None

    def refusals(self, each: GangCandidate) -> Mapping[str, Refusal[NodeTypeRule]]:
        """Return why no type can take a pod, by the types' names."""
        other = refusal_by(NodeTypeRule.OTHER_PODS)
        return {kind.name: self._refusal(each, kind) or other for kind in self.types}

    def _refusal(self, each: GangCandidate, kind: NodeType) -> Refusal[NodeTypeRule] | None:
        if not self._by_sums and each.request is not None:
            refusal = kind.refusal(each.request)
            if refusal is not None:
                return refusal
        if static_reason(each.pod.spec, self._new[kind.name]) is not None:
            return refusal_by(NodeTypeRule.LABELS)
        lacking = next(insufficient(pod_requests(each.pod.spec), {}, self._offered[kind.name]), None)
        if lacking is not None:
            return refusal_by(NodeTypeRule.TOO_FEW_RESOURCES, wanted=lacking.text)
        return self._barred.get((each.pod.metadata.uid, kind.name))

    def _put(self, each: GangCandidate, name: str) -> bool:
        request = each.request
        if request is not None and not self._by_sums:
            decision = self._engine.decide(request, name, 0)
            if not isinstance(decision, Decision):
                return False
            booking = decision.booking(each.pod, request, 0.0)
            if booking is not None:
                self._ledger.apply(Assumed(booking))
        self._predicates.place(each.pod, name)
        return True


_KNOWN_TO_AUTOSCALERS: Final = (NodeTypeRule.TOO_LITTLE,)


@dataclass(frozen=True, slots=True)
class NodesInSum:
    """The nodes that there are, in the eyes of an autoscaler.

    ``reserved`` are pods that are counted there by their
    reservations: an autoscaler does not know these. ``starting`` are nodes that it expects to offer more than they do
    (``as_described``), by their names.
    """

    predicates: Predicates
    reserved: Sequence[Pod]
    starting: Mapping[str, Node] = field(default_factory=dict)

    def seen(self) -> Predicates:
        """Return the nodes as it sees them, without the pods that are not there yet."""
        predicates = self.predicates.snapshot()
        for pod in self.reserved:
            predicates.remove(pod.metadata.uid)
        for node in self.starting.values():
            predicates.put_node(node)
        return predicates


class UnaskedNodes:
    """What an autoscaler does by itself. ``barred`` says which types take which pods not, or are not to be asked."""

    def __init__(
        self, nodes: NodesInSum, types: Sequence[NodeType], configuration: Configuration, barred: BarredTypes
    ) -> None:
        self._nodes, self._types, self._configuration, self._barred = nodes, types, configuration, barred
        self._unfit = {key: why for key, why in barred.items() if why.rule in _KNOWN_TO_AUTOSCALERS}

    def left(self, pods: Iterable[GangCandidate]) -> set[str]:
        """Return the UIDs of the pods that the nodes take which an autoscaler adds for certain, once it can.

        It sees those of like pods that are more than all nodes have room for in sum, whatever others there are. As many
        of them as these new nodes take, GPU by GPU, need nobody else to ask.
        """
        groups: dict[tuple[object, ...], list[GangCandidate]] = {}
        for each in sorted(pods, key=by_age):
            groups.setdefault(likeness(each), []).append(each)
        found = set[str]()
        rooms = self._rooms([group[0] for group in groups.values()])
        for group, room in zip(groups.values(), rooms, strict=True):
            homeless = len(group) - room
            in_sum = {
                kind.name: max(1, Predicates([kind.node("new")]).capacity_bound(group[0].pod, "new"))
                for kind in self._types
            }
            first = group[: max(in_sum.values(), default=0)]
            one = new_nodes(first, self._types, {}, self._configuration, self._barred, most=1)
            for name in one.counts:
                nodes = -(-max(0, homeless) // in_sum[name])
                found.update(each.pod.metadata.uid for each in group[: nodes * len(one.types)])
        return found

    def _rooms(self, pods: Iterable[GangCandidate]) -> list[int]:
        """Return for each of ``pods`` how many like it all nodes have room for in sum, if no other comes."""
        rooms: list[int] = []
        predicates = self._nodes.seen()
        for each in pods:
            names = predicates.open_nodes(each.pod)
            rooms.append(sum(predicates.capacity_bound(each.pod, name) for name in names))
        return rooms

    def counts(self, pods: Collection[GangCandidate]) -> Counter[str]:
        """Return how many nodes of each type an autoscaler is about to add for ``pods``."""
        places = self._places(pods)
        homeless = [each for each in sorted(pods, key=by_age) if each.pod.metadata.uid not in places]
        return nodes_by_sums(homeless, self._types, self._configuration, self._unfit)

    def starting_in_use(self, pods: Collection[GangCandidate]) -> set[str]:
        """Return the names of the starting nodes that an autoscaler takes for those where ``pods`` will go.

        It puts no placeholder there.
        """
        if not self._nodes.starting:
            return set()
        places = self._places(pods)
        return set(places.values()) & self._nodes.starting.keys()

    def _places(self, pods: Collection[GangCandidate]) -> dict[str, str]:
        """Return to which nodes an autoscaler believes that ``pods`` will go, by UID; starting ones come last."""
        places: dict[str, str] = {}
        predicates = self._nodes.seen()
        for each in sorted(pods, key=by_age):
            names = predicates.open_nodes(each.pod)
            if names:
                places[each.pod.metadata.uid] = min(names, key=self._nodes.starting.__contains__)
                predicates.place(each.pod, places[each.pod.metadata.uid])
        return places


def as_described(node: Node, kind: NodeType) -> Node:
    """Return a node of a type as it will be if all comes that is described and is not there yet.

    Taints that are not described are gone then; a node that is closed stays closed.
    """
    whole, there = kind.node(node.metadata.name), node_allocatable(node)
    offered = {name: text for name, text in node.status.allocatable.items() if there.get(name)}
    resources = {**whole.status.allocatable, **offered}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels={**whole.metadata.labels, **node.metadata.labels}),
        spec=msgspec.structs.replace(node.spec, taints=whole.spec.taints),
        status=NodeStatus(capacity=resources, allocatable=resources),
    )


def likeness(each: GangCandidate) -> tuple[object, ...]:
    """Return what is the same for pods that may go to the same nodes and take as much of them."""
    spec = each.pod.spec
    asked = (spec.node_selector, spec.affinity, spec.tolerations, spec.containers, spec.init_containers, spec.resources)
    return msgspec.json.encode(asked), each.request
