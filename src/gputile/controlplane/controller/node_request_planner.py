"""Plans one round of asking for nodes: which placeholders to create and to delete, and what to say.

No I/O, no clock.

A pod is a reason for a new node if no GPU of any node has room for it, or if its gang lacks room for it, and an
empty node of a type that the autoscaler can add would take it. The autoscaler sees pods without a gate itself, and
adds nodes for those that do not fit the sums of any node, as soon as it can; placeholders ask for the rest.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang_planner import GangPlanner
from gputile.controlplane.controller.node_backoff import (
    BEYOND_MOST,
    LEFT,
    NodeBackoff,
    NodeRequestEvents,
    Wording,
    refused,
    requested,
)
from gputile.controlplane.controller.nodes_by_type import NodesByType, TypeNodes
from gputile.controlplane.controller.placeholders import NodeRequestRound, Placeholders
from gputile.core.devices.gang_membership import GangName, gang_of, in_line
from gputile.core.devices.node_type import node_types_of
from gputile.core.devices.request import RequestError
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.new_nodes import (
    BarredTypes,
    NewNodes,
    NodesInSum,
    UnaskedNodes,
    as_described,
    likeness,
    new_nodes,
)

_SECOND: Final = 10**9
SETTLING_SECONDS: Final = 5.0  # so long kube-scheduler and preemption may take to find a place
MOST_PODS: Final = 256  # that are looked at in one round, beside the rest of the last one's gang
_MOST_IDLE: Final = 100  # idle nodes of a type that placeholders stand on
_MOST_FAILURES: Final = 4  # of a type in a row, until idle nodes are no longer kept for the rest of a gang's to come


class NodeRequestPlanner:
    """Decides round by round what is asked for; ``new_name`` gives each placeholder a name of its own."""

    def __init__(self, configuration: Configuration, gangs: GangPlanner, new_name: Callable[[], str]) -> None:
        self._state = ClusterState(configuration)  # the snapshot of the latest round
        self._gangs = gangs
        self._configuration = configuration
        self._wait_seconds = configuration.autoscaling.wait_seconds
        self._types = {kind.name: kind for kind in node_types_of(configuration)}
        self.placeholders = Placeholders(self._wait_seconds, new_name)
        self._backoff = NodeBackoff(self._wait_seconds * _SECOND)
        self._events = NodeRequestEvents()
        self._looks = 0
        self._refused_at: dict[str, int] = {}  # UID -> the number of the look that found no node for the pod last
        self._nodes = NodesByType(tuple(self._types.values()), self._wait_seconds * _SECOND)
        self._released: dict[str, int] = {}  # UID -> when the pod was first seen without the gate it had, Unix ns
        self._stood_on: set[str] | None = None  # nodes that are there and have a placeholder each; None: not known yet
        self.refused = 0  # pods that no node type could take, in the latest round

    def plan(self, state: ClusterState) -> NodeRequestRound:
        """Return what to do now; ``state`` is a snapshot."""
        self._state, waiting, now_ns = state, state.waiting, state.now_ns
        result = NodeRequestRound()
        never_there = self.placeholders.observe(waiting.placeholders, now_ns)
        released = waiting.refused.keys() & waiting.once_gated
        self._released = {uid: self._released.get(uid, now_ns) for uid in released}
        ordered, of_gangs = self._backoff.ordered_types(), self._gangs.without_room
        if not (waiting.refused or waiting.placeholders or of_gangs or ordered):
            self.refused, self._stood_on = 0, set()
            self._nodes.forget()
            return result
        nodes = self._nodes.sort(state, ordered)
        self._backoff.settle(state.knows, self._place)
        self._take_failures(nodes, never_there, result)
        pods = self._in_line()
        barred = self._barred(pods, nodes)
        left, found, wanted = self._wanted(pods, self._unasked(nodes, barred), nodes, barred)
        self._adjust(wanted, nodes, found, result)
        self._stand_on_idle(nodes, self._kept(found), result)
        result.unmarked = self.placeholders.unmarked()
        self.refused = len(found.refused)
        uids = waiting.refused.keys() | {pod.metadata.uid for pod in of_gangs}
        self._looks += 1
        self._refused_at |= dict.fromkeys(found.refused.keys() | left, self._looks)
        self._refused_at = {uid: look for uid, look in self._refused_at.items() if uid in uids - found.types.keys()}
        self._events.keep(uids)
        for each in pods:
            wording = self._wording(each.pod, found, wanted, left)
            if wording is not None:
                result.events += self._events.new_event(each.pod, wording, now_ns)
        return result

    def stands_on(self, node: str) -> bool:
        return self._stood_on is not None and node in self._stood_on

    def abandon(self) -> None:
        """Forget what was decided: nothing of it is written."""
        self.placeholders.abandon()
        self._events.clear()

    # -- what there is

    def _waits(self, pod: Pod) -> float:
        """Return for how many seconds kube-scheduler and autoscalers have seen a pod: a gate hides it from them."""
        since_ns = self._released.get(pod.metadata.uid, unix_seconds(pod.metadata.creation_timestamp) * _SECOND)
        return max(0.0, self._state.now_ns - since_ns) / _SECOND

    def _is_late(self, pod: Pod) -> bool:
        return self._waits(pod) >= self._wait_seconds

    def _candidate(self, pod: Pod) -> GangCandidate | None:
        try:
            return GangCandidate(pod, self._state.placement.engine.request(pod))
        except RequestError:
            return None  # the extender tells

    def _in_line(self) -> list[GangCandidate]:
        """Return the pods that no node takes as things stand, by priority and age.

        Those that no node helped come after all others, those first whose last look is longest ago. Pods of a gang are
        looked at together.
        """
        units: dict[Hashable, list[Pod]] = {}
        for pod in self._gangs.without_room:
            units.setdefault(gang_of(pod), []).append(pod)
        for pod in self._state.waiting.refused.values():
            if self._waits(pod) >= SETTLING_SECONDS:
                units[pod.metadata.uid] = [pod]

        def order(unit: Sequence[Pod]) -> tuple[int, object]:
            return max(self._refused_at.get(pod.metadata.uid, 0) for pod in unit), in_line(unit[0])

        found: list[GangCandidate] = []
        for unit in sorted(units.values(), key=order):
            if len(found) >= MOST_PODS:
                break
            alone = unit[0].metadata.uid in units
            if not alone or self._is_without_place(unit[0]):
                candidates = (self._candidate(pod) for pod in unit[:MOST_PODS])
                found += [each for each in candidates if each is not None]
        return found

    def _is_without_place(self, pod: Pod) -> bool:
        each, placement = self._candidate(pod), self._state.placement
        # A pod with a booking preempts, or is being bound.
        if each is None or each.request is None or self._state.ledger.booking(pod.metadata.uid) is not None:
            return False
        names = placement.predicates.open_nodes(pod)
        return not placement.engine.filter(each.request, names).feasible

    def _place(self, uid: str) -> tuple[str, int] | None:
        """Return the type of the node that a pod is bound to, "" for none, and when that was created (Unix ns)."""
        booking = self._state.ledger.booking(uid)
        if booking is None or booking.reserved:
            return None
        node = self._state.nodes.get(booking.node)
        if node is None:
            return "", 0
        type_name = next((name for name, kind in self._types.items() if kind.has(node)), "")
        return type_name, int(unix_seconds(node.metadata.creation_timestamp) * _SECOND)

    # -- how many nodes are wanted

    def _unasked(self, nodes: Mapping[str, TypeNodes], barred: BarredTypes) -> UnaskedNodes:
        """Return how an autoscaler sees the nodes that there are."""
        state = self._state
        starting = {
            name: as_described(state.nodes[name], kind)
            for kind in self._types.values()
            for name in sorted(nodes[kind.name].starting_for_karpenter)
        }
        in_sum = NodesInSum(state.placement.predicates, state.reserved_pods(), starting)
        return UnaskedNodes(in_sum, tuple(self._types.values()), self._configuration, barred)

    def _wanted(
        self,
        pods: Sequence[GangCandidate],
        unasked: UnaskedNodes,
        nodes: Mapping[str, TypeNodes],
        barred: BarredTypes,
    ) -> tuple[set[str], NewNodes, Counter[str]]:
        """Return who is left to the autoscaler, where the others go, and how many nodes of each type are wanted.

        Of pods that autoscalers see, like ones belong together: once one has waited for ``waitSeconds``, those are
        left to the autoscaler that it surely adds nodes for as soon as it can; beside a placeholder it would add as
        many again. What it is about to add for fresh ones is subtracted, but not from what pods need that have waited
        for as long. On the nodes where it expects pods it puts no placeholder: these are not idle to it.
        """
        seen = {each.pod.metadata.uid: likeness(each) for each in pods if not each.pod.spec.scheduling_gates}
        late_kinds = {seen.get(each.pod.metadata.uid) for each in pods if self._is_late(each.pod)}

        def is_late(each: GangCandidate) -> bool:
            like = seen.get(each.pod.metadata.uid)
            return self._is_late(each.pod) if like is None else like in late_kinds

        visible = [each for each in pods if each.pod.metadata.uid in seen]
        left = unasked.left(each for each in visible if is_late(each))
        planned = [each for each in pods if each.pod.metadata.uid not in left]
        types = tuple(self._types.values())
        starting = {name: each.starting for name, each in nodes.items()}
        found = new_nodes(planned, types, starting, self._configuration, barred)
        added = unasked.counts([each for each in planned if each.pod.metadata.uid in seen and not is_late(each)])
        wanted = found.counts - added
        if added:
            late = [each for each in planned if is_late(each)]
            wanted |= new_nodes(late, types, starting, self._configuration, barred).counts
        in_use = unasked.starting_in_use(visible) | self._gangs.starting_on
        for of_type in nodes.values():
            of_type.idle -= in_use
        return left, found, wanted

    # -- which types may be asked for

    def _barred(self, pods: Sequence[GangCandidate], nodes: Mapping[str, TypeNodes]) -> BarredTypes:
        """Return by UID and type why no node of the type is asked for that pod, though one as described would do.

        Nodes that are there show that their type is not as described.
        """
        barred: dict[tuple[str, str], Refusal[NodeTypeRule]] = {}
        now_ns, asking = self._state.now_ns, self.placeholders.asking()
        for kind in self._types.values():
            usable, pausing = nodes[kind.name].usable, self._backoff.pausing(kind.name, now_ns)
            for each in pods:
                key = each.pod.metadata.uid, kind.name
                order = self._backoff.order(*key)
                if pausing is not None:
                    barred[key] = pausing
                elif usable and (lacking := self._lacking(each, usable)) is not None:
                    barred[key] = lacking
                elif order is not None and order.pauses(now_ns) and order.jobs.isdisjoint(asking):
                    barred[key] = refusal_by(NodeTypeRule.OTHERS_FIRST, there=order.times)
        return barred

    def _lacking(self, each: GangCandidate, usable: Sequence[str]) -> Refusal[NodeTypeRule] | None:
        """Return why none of the usable nodes of a type would take a pod if it were empty, None where one would."""
        empty = self._state.empty_placement
        if each.request is None:
            return None
        open_nodes = set(empty.predicates.open_alone(each.pod))
        taking = [name for name in usable if name in open_nodes]
        if not taking:
            why = empty.predicates.reason(each.pod, usable[0])
            return refusal_by(NodeTypeRule.TOO_LITTLE, node=usable[0], wanted=why.text if why else "")
        if empty.engine.filter(each.request, taking).feasible:
            return None
        return refusal_by(NodeTypeRule.NOT_AS_DESCRIBED, node=taking[0])

    def _take_failures(self, nodes: Mapping[str, TypeNodes], never_there: Set[str], result: NodeRequestRound) -> None:
        """Pause the types that have failed since the last round; give up placeholders that no node came for."""
        late = self.placeholders.late(self._state.now_ns)
        failed = {name: of_type.failure for name, of_type in nodes.items() if of_type.failure is not None}
        failed |= dict.fromkeys(never_there, refusal_by(NodeTypeRule.NO_PLACEHOLDER))
        failed |= dict.fromkeys(late, refusal_by(NodeTypeRule.PAUSED))
        for name, refusal in failed.items():
            self._backoff.fail(name, refusal, self._state.now_ns)
            self._events.happened_again(EventReason.NODE_NOT_ADDED)
        for name in late:
            result.deleted += [self.placeholders.delete(each) for each in self.placeholders.oldest_first(name)]

    # -- what is asked for

    def _adjust(
        self, wanted: Counter[str], nodes: Mapping[str, TypeNodes], found: NewNodes, result: NodeRequestRound
    ) -> None:
        """Have as many placeholders of each type as nodes are wanted, and may be asked for now.

        Each node that joins ends a placeholder: if as many are wanted as before, others got the node, or it is of no
        use.
        """
        now_ns = self._state.now_ns
        for name in self.placeholders.types() | wanted.keys():
            joined = nodes[name].joined if name in nodes else 0
            there = self.placeholders.oldest_first(name)
            ended = there[: max(len(there) - wanted[name], joined)]
            result.deleted += [self.placeholders.delete(each) for each in ended]
            ready = self._without_order(name, found)
            more = wanted[name] - len(there) + len(ended)
            jobs = [self.placeholders.create(self._types[name], now_ns) for _ in range(min(more, len(ready)))]
            if jobs:
                result.created += jobs
                self._backoff.ordered(ready, name, [job["metadata"]["name"] for job in jobs], now_ns)
                self._events.happened_again(EventReason.NODE_REQUESTED, ready)

    def _without_order(self, type_name: str, found: NewNodes) -> list[str]:
        """Return the UIDs of the pods that want a node of a type and for which no placeholder is there."""
        asking, now_ns = self.placeholders.asking(), self._state.now_ns
        wanting = [uid for uid, name in found.types.items() if name == type_name and uid not in found.on_starting]
        orders = {uid: self._backoff.order(uid, type_name) for uid in wanting}
        return [
            uid
            for uid, order in orders.items()
            if order is None or (order.jobs.isdisjoint(asking) and not order.pauses(now_ns))
        ]

    def _stand_on_idle(self, nodes: Mapping[str, TypeNodes], kept: Set[str], result: NodeRequestRound) -> None:
        """Have a placeholder for each idle node of the types that are asked for: else an autoscaler adds none.

        Else there is one for each of the nodes ``kept``, and for those that Karpenter would put it on instead.
        """
        stood_on = set[str]()
        for name in self._types.keys() | self.placeholders.types():
            of_type = nodes.get(name, TypeNodes())
            waiting = of_type.idle & kept
            beside = of_type.idle & of_type.starting_for_karpenter if waiting else set()
            taken = of_type.idle if self.placeholders.oldest_first(name) else waiting | beside
            stood_on |= taken
            wanted, there = min(len(taken), _MOST_IDLE), self.placeholders.oldest_first(name, idle=True)
            for _ in range(wanted - len(there)):
                result.created.append(self.placeholders.create(self._types[name], self._state.now_ns, idle=True))
            spare = there[: max(0, len(there) - wanted)]
            result.deleted += [self.placeholders.delete(each) for each in spare]
        self._stood_on = stood_on

    def _kept(self, found: NewNodes) -> set[str]:
        """Return the nodes with room for a part of a gang, as long as its types have not failed too often."""
        hopeful = set[GangName]()
        for pod in self._gangs.without_room:
            why, chosen, gang = found.refused.get(pod.metadata.uid, {}), found.types.get(pod.metadata.uid), gang_of(pod)
            hoped = [name for name, refusal in why.items() if refusal.rule.passes] if chosen is None else [chosen]
            if gang is not None and any(self._backoff.times_failed(name) < _MOST_FAILURES for name in hoped):
                hopeful.add(gang)
        return {node for gang in hopeful for node in self._gangs.searches.nodes_with_room(gang)}

    # -- what is said

    def _wording(self, pod: Pod, found: NewNodes, wanted: Counter[str], left: Set[str]) -> Wording | None:
        """Return reason and text of the event that says how things stand with a pod, None where there is nothing."""
        uid = pod.metadata.uid
        if (why := found.refused.get(uid)) is not None:
            return refused(why)
        if uid in left:
            return LEFT
        if (type_name := found.types.get(uid)) is None:
            return BEYOND_MOST if self._is_late(pod) else None
        if type_name not in wanted:
            return None
        order = self._backoff.order(uid, type_name)
        return requested(type_name, order.times if order is not None else 1)
