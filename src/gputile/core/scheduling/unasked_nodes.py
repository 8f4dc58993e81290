"""Tells for which pods an autoscaler adds nodes by itself, and how many.

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
from gputile.core.kube_predicates.pod_requests import node_allocatable
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.refusal import NodeTypeRule
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.new_nodes import BarredTypes, by_age, new_nodes, nodes_by_sums

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
