"""Plans one round of asking for nodes: which placeholders to create and to delete, and what to say.

No I/O, no clock.

A pod is a reason for a new node if no GPU of any node has room for it, or if its gang lacks room for it, and an
empty node of a type that the autoscaler can add would take it. The autoscaler sees pods without a gate itself, and
adds nodes for those that do not fit the sums of any node, as soon as it can; placeholders ask for the rest.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang_planner import GangPlanner
from gputile.controlplane.controller.gangs.gang_round import GangEvent
from gputile.controlplane.controller.node_arrivals import NodeArrivals, TypeNodes
from gputile.controlplane.controller.node_orders import NodeOrders, Place, TypeFailures
from gputile.controlplane.controller.node_request_events import NodeRequestEvents, NodeRequestOutlook
from gputile.controlplane.controller.requested_nodes import RequestedNodes, type_of
from gputile.controlplane.controller.waiting_pods import WaitingLine, WaitingPods, first_pods
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.node_type import node_types_of
from gputile.core.devices.request import RequestError
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.new_nodes import BarredTypes, NewNodes, new_nodes
from gputile.core.scheduling.unasked_nodes import NodesInSum, UnaskedNodes, as_described, likeness

_SECOND: Final = 10**9
SETTLING_SECONDS: Final = 5.0  # so long kube-scheduler and preemption may take to find a place
MOST_PODS: Final = 256  # single pods, and as many of gangs, that are looked at in one round
_MOST_IDLE: Final = 100  # idle nodes of a type that placeholders stand on
_MOST_FAILURES: Final = 4  # of a type in a row, until idle nodes are no longer kept for the rest of a gang's to come


@dataclass(slots=True)
class NodeRequestRound:
    """What a round decided: Jobs of placeholders to create, names of Jobs to delete, and what to say.

    ``unmarked`` are placeholders that autoscalers cannot see yet.
    """

    created: list[Mapping[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unmarked: list[Pod] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)


class NodeRequestPlanner:
    """Decides round by round what is asked for; ``new_name`` gives each placeholder a name of its own.

    What exists is read from the cluster each time.
    """

    def __init__(self, configuration: Configuration, gangs: GangPlanner, new_name: Callable[[], str]) -> None:
        self._cluster_state = ClusterState(configuration)  # this and the pods are the snapshot of the latest round
        self._waiting = WaitingPods(configuration, "")
        self._gangs = gangs
        self._configuration = configuration
        self._scaling = self._configuration.autoscaling
        self._types = node_types_of(self._configuration)
        self._requests = RequestedNodes(self._scaling.wait_seconds, new_name)
        self._failures = TypeFailures(self._scaling.wait_seconds * _SECOND)
        self._orders = NodeOrders()
        self._events = NodeRequestEvents(self._orders)
        self._line = WaitingLine()
        self._arrivals = NodeArrivals(self._types, self._scaling.wait_seconds * _SECOND)
        self._released: dict[str, int] = {}  # UID -> when the pod was first seen without the gate it had, Unix ns
        self._stood_on: set[str] | None = None  # nodes that are there and have a placeholder each; None: not known yet
        self._refused = 0

    @property
    def refused(self) -> int:
        return self._refused

    def requested(self) -> Counter[str]:
        return self._requests.counts()

    def plan(self, state: ClusterState, waiting: WaitingPods) -> NodeRequestRound:
        """Return what to do now; ``state`` and ``waiting`` are a snapshot of the same moment."""
        self._cluster_state, self._waiting, now_ns = state, waiting, state.now_ns
        self._requests.see(waiting.placeholders)
        result = NodeRequestRound()
        never_there = self._forget(now_ns)
        awaited = self._orders.types()
        if not (self._waiting.waiting or self._waiting.placeholders or self._gangs.without_room() or awaited):
            self._refused = 0
            self._arrivals.forget()
            self._stood_on = set()
            return result
        nodes = self._arrivals.look(self._cluster_state, awaited)
        self._failures.forgive(self._orders.settle(self._cluster_state.knows, self._place))
        for type_name, of_type in nodes.items():
            for failure in of_type.failures[-1:]:
                self._fail(type_name, now_ns, failure)
        for type_name in never_there:
            self._fail(type_name, now_ns, refusal_by(NodeTypeRule.NO_PLACEHOLDER))
        self._take_timeouts(now_ns, result)
        pods = self._in_line(now_ns)
        barred = self._barred(pods, nodes, now_ns)
        resting = self._resting(pods, barred, now_ns)
        pods.sort(key=lambda each: each.pod.metadata.uid in resting)  # no node is asked for these now, whoever they are
        unasked = self._unasked(nodes, barred)
        left, found, wanted = self._plan(pods, unasked, nodes, barred, now_ns)
        in_use = unasked.starting_in_use([each for each in pods if not each.pod.spec.scheduling_gates])
        for of_type in nodes.values():
            of_type.idle -= in_use | self._gangs.starting_on()
        self._adjust(wanted, nodes, found, now_ns, result)
        self._refused = len(found.refused)
        uids = waiting.waiting.keys() | {pod.metadata.uid for pod in self._gangs.without_room()}
        pausing = {
            uid: name
            for uid, name in resting.items()
            if found.types.get(uid, name) == name and uid not in found.on_starting
        }
        self._line.note(found.types.keys() - pausing.keys(), found.refused.keys() | left | pausing.keys(), uids)
        self._events.keep(uids)
        late = {each.pod.metadata.uid for each in pods if self._is_late(each.pod, now_ns)}
        outlook = NodeRequestOutlook(found, wanted, pausing, left, late)
        result.events += self._events.tell([each.pod for each in pods], outlook, now_ns)
        return result

    def stands_on(self, node: str) -> bool:
        return self._stood_on is not None and node in self._stood_on

    def being_deleted(self, placeholders: Mapping[str, Pod]) -> bool:
        """Return whether some of the ``placeholders`` that are there were deleted."""
        return self._requests.being_deleted(placeholders)

    def abandon(self) -> None:
        self._requests.abandon()
        self._events.clear()

    # -- what there is

    def _waits(self, pod: Pod, now_ns: int) -> float:
        """Return for how many seconds kube-scheduler and autoscalers have seen a pod: a gate hides it from them."""
        released_ns = self._released.get(pod.metadata.uid)
        return _age(pod, now_ns) if released_ns is None else max(0, now_ns - released_ns) / _SECOND

    def _candidate(self, pod: Pod) -> GangCandidate | None:
        try:
            return GangCandidate(pod, self._cluster_state.placement.engine.request(pod))
        except RequestError:
            return None  # the extender tells

    def _in_line(self, now_ns: int) -> list[GangCandidate]:
        """Return the pods that no node takes as things stand, alone or with their gangs, in the order of the line."""
        alone = self._without_place(now_ns)
        units = [*((each,) for each in alone), *self._of_gangs()]
        candidates = {unit[0].pod.metadata.uid: unit for unit in units}
        ordered = self._line.ordered([each.pod for each in unit] for unit in units)
        return [each for pods in ordered for each in candidates[pods[0].metadata.uid]]

    def _without_place(self, now_ns: int) -> list[GangCandidate]:
        """Return the single pods that no node takes."""
        found: list[GangCandidate] = []
        placement = self._cluster_state.placement
        settled = [pod for pod in self._waiting.waiting.values() if self._waits(pod, now_ns) >= SETTLING_SECONDS]
        for (pod,) in self._line.ordered((pod,) for pod in settled):
            if len(found) == MOST_PODS:
                break
            each = self._candidate(pod)
            booked = self._cluster_state.ledger.booking(pod.metadata.uid)
            if each is None or each.request is None or booked is not None:  # booked: it preempts, or is being bound
                continue
            names = placement.predicates.open_nodes(pod)
            if not placement.engine.filter(each.request, names).feasible:
                found.append(each)
        return found

    def _of_gangs(self) -> list[list[GangCandidate]]:
        """Return the pods of gangs that lack room, gang by gang."""
        gangs: dict[GangName | None, list[Pod]] = {}
        for pod in self._gangs.without_room():
            gangs.setdefault(gang_of(pod), []).append(pod)
        first: dict[GangName | None, list[GangCandidate]] = {}
        for pod in first_pods(self._line.ordered(gangs.values()), MOST_PODS):
            if (each := self._candidate(pod)) is not None:
                first.setdefault(gang_of(pod), []).append(each)
        return list(first.values())

    def _place(self, uid: str) -> Place | None:
        booking = self._cluster_state.ledger.booking(uid)
        if booking is None or booking.reserved:
            return None
        node = self._cluster_state.nodes.get(booking.node)
        type_name = next((kind.name for kind in self._types if node is not None and kind.has(node)), "")
        return Place(type_name, self._arrivals.joined_ns(booking.node))

    # -- how many nodes are wanted

    def _unasked(self, nodes: Mapping[str, TypeNodes], barred: BarredTypes) -> UnaskedNodes:
        """Return how an autoscaler sees the nodes that there are."""
        state = self._cluster_state
        starting = {
            name: as_described(state.nodes[name], kind)
            for kind in self._types
            for name in sorted(nodes[kind.name].starting_for_karpenter)
        }
        in_sum = NodesInSum(state.placement.predicates, state.reserved_pods(), starting)
        return UnaskedNodes(in_sum, self._types, self._configuration, barred)

    def _plan(
        self,
        pods: Sequence[GangCandidate],
        unasked: UnaskedNodes,
        nodes: Mapping[str, TypeNodes],
        barred: BarredTypes,
        now_ns: int,
    ) -> tuple[set[str], NewNodes, Counter[str]]:
        """Return who is left to the autoscaler, where the others go, and how many nodes of each type are wanted.

        Of pods that autoscalers see, like ones belong together: once one has waited for ``waitSeconds``, those are
        left to the autoscaler that it surely adds nodes for as soon as it can; beside a placeholder it would add as
        many again. What it is about to add for fresh ones is subtracted, but not from what pods need that have waited
        for as long.
        """
        seen = {each.pod.metadata.uid: likeness(each) for each in pods if not each.pod.spec.scheduling_gates}
        late_kinds = {
            seen[each.pod.metadata.uid]
            for each in pods
            if each.pod.metadata.uid in seen and self._is_late(each.pod, now_ns)
        }

        def is_late(each: GangCandidate) -> bool:
            like = seen.get(each.pod.metadata.uid)
            return self._is_late(each.pod, now_ns) if like is None else like in late_kinds

        left = unasked.left(each for each in pods if each.pod.metadata.uid in seen and is_late(each))
        planned = [each for each in pods if each.pod.metadata.uid not in left]
        starting = {name: each.starting for name, each in nodes.items()}
        found = new_nodes(planned, self._types, starting, self._configuration, barred)
        added = unasked.counts([each for each in planned if each.pod.metadata.uid in seen and not is_late(each)])
        wanted = found.counts - added
        if added:
            late = [each for each in planned if is_late(each)]
            needed = new_nodes(late, self._types, starting, self._configuration, barred)
            wanted |= needed.counts
        return left, found, wanted

    def _is_late(self, pod: Pod, now_ns: int) -> bool:
        return self._waits(pod, now_ns) >= self._scaling.wait_seconds

    # -- which types may be asked for

    def _barred(self, pods: Sequence[GangCandidate], nodes: Mapping[str, TypeNodes], now_ns: int) -> BarredTypes:
        """Return by UID and type why no node of the type is asked for that pod, though one as described would do.

        Nodes show that their type is not as described. One that has taken on the type's label later shows nothing: it
        may be in the hands of somebody who wants no other to come.
        """
        barred: dict[tuple[str, str], Refusal[NodeTypeRule]] = {}
        empty = self._cluster_state.empty_placement
        for kind in self._types:
            usable, pausing = nodes[kind.name].usable, self._failures.pausing(kind.name, now_ns)
            labels = self._cluster_state.settled_labels
            believed = any(labels.label(name, kind.key) == kind.value for name in usable)
            for each in pods:
                key = each.pod.metadata.uid, kind.name
                if pausing is not None:
                    barred[key] = pausing
                elif believed and each.request is not None:
                    open_nodes = set(empty.predicates.open_alone(each.pod))
                    taking = [name for name in usable if name in open_nodes]
                    if not taking:
                        why = empty.predicates.reason(each.pod, usable[0])
                        barred[key] = refusal_by(
                            NodeTypeRule.TOO_LITTLE, node=usable[0], wanted=why.text if why else ""
                        )
                    elif not empty.engine.filter(each.request, taking).feasible:
                        barred[key] = refusal_by(NodeTypeRule.NOT_AS_DESCRIBED, node=taking[0])
        return barred

    def _fail(self, type_name: str, now_ns: int, refusal: Refusal[NodeTypeRule]) -> None:
        """Ask for no node of a type for a while, each time for longer."""
        self._failures.fail(type_name, refusal, now_ns)
        self._events.happened_again(EventReason.NODE_NOT_ADDED)

    def _take_timeouts(self, now_ns: int, result: NodeRequestRound) -> None:
        """Give up placeholders that no node came for."""
        there = self._requests.alive()
        late = {type_of(pod) for pod in there if _age(pod, now_ns) > self._scaling.wait_seconds}
        for name in late:
            self._fail(name, now_ns, refusal_by(NodeTypeRule.PAUSED))
        result.deleted += [self._requests.delete(pod) for pod in there if type_of(pod) in late]

    # -- what is asked for

    def _adjust(
        self,
        wanted: Counter[str],
        nodes: Mapping[str, TypeNodes],
        found: NewNodes,
        now_ns: int,
        result: NodeRequestRound,
    ) -> None:
        """Have as many placeholders of each type as nodes are wanted, and may be asked for now.

        Each node that joins ends a placeholder: if as many are wanted as before, others got the node, or it is of no
        use.
        """
        requested, kinds = self._requests.counts(), {kind.name: kind for kind in self._types}
        for name in requested.keys() | wanted.keys():
            joined = nodes[name].joined if name in nodes else 0
            ended = self._requests.alive(name)[: max(requested[name] - wanted[name], joined)]
            result.deleted += [self._requests.delete(pod) for pod in ended]
            more = wanted[name] - requested[name] + len(ended)
            ready = [uid for uid in self._without_order(name, found) if not self._orders.pauses(uid, name, now_ns)]
            jobs = [self._requests.create(kinds[name], now_ns) for _ in range(min(more, len(ready)))]
            if jobs:
                result.created += jobs
                self._orders.note(ready, name, [job["metadata"]["name"] for job in jobs], now_ns)
                self._events.happened_again(EventReason.NODE_REQUESTED, ready)
        self._stand_on_idle(nodes, self._kept(found), now_ns, result)
        there = (pod for idle in (False, True) for pod in self._requests.alive(idle=idle))
        result.unmarked = [pod for pod in there if not pod.status.conditions]

    def _stand_on_idle(
        self, nodes: Mapping[str, TypeNodes], kept: Set[str], now_ns: int, result: NodeRequestRound
    ) -> None:
        """Have a placeholder for each idle node of the types that are asked for: else an autoscaler adds none.

        Else there is one for each of the nodes ``kept``, and for those that Karpenter would put it on instead.
        """
        asked, there = self._requests.counts(), self._requests.counts(idle=True)
        kinds = {kind.name: kind for kind in self._types}
        stood_on = set[str]()
        for name in kinds.keys() | there.keys():
            of_type = nodes.get(name, TypeNodes())
            waiting = of_type.idle & kept
            beside = of_type.idle & of_type.starting_for_karpenter if waiting else set()
            taken = of_type.idle if asked[name] else waiting | beside
            stood_on |= taken
            wanted = min(len(taken), _MOST_IDLE)
            more = range(wanted - there[name])
            result.created += [self._requests.create(kinds[name], now_ns, idle=True) for _ in more]
            spare = self._requests.alive(name, idle=True)[: max(0, there[name] - wanted)]
            result.deleted += [self._requests.delete(pod) for pod in spare]
        self._stood_on = stood_on

    def _kept(self, found: NewNodes) -> set[str]:
        """Return the nodes with room for a part of a gang, as long as its types have not failed too often."""
        hopeful = set[GangName | None]()
        for pod in self._gangs.without_room():
            refused, chosen = found.refused.get(pod.metadata.uid, {}), found.types.get(pod.metadata.uid)
            hoped = [name for name, refusal in refused.items() if refusal.rule.passes] if chosen is None else [chosen]
            if any(self._failures.times(name) < _MOST_FAILURES for name in hoped):
                hopeful.add(gang_of(pod))
        return {node for gang in hopeful if gang is not None for node in self._gangs.nodes_with_room(gang)}

    def _resting(self, pods: Sequence[GangCandidate], barred: BarredTypes, now_ns: int) -> dict[str, str]:
        """Return by UID the types of which the next node for a pod is asked for later only."""
        jobs = self._requests.jobs()
        found: dict[str, str] = {}
        for each in pods:
            uid = each.pod.metadata.uid
            for name in (kind.name for kind in reversed(self._types)):
                order = self._orders.order(uid, name)
                is_open = order is not None and order.jobs.isdisjoint(jobs) and (uid, name) not in barred
                if is_open and self._orders.pauses(uid, name, now_ns):
                    found[uid] = name
        return found

    def _without_order(self, kind_name: str, found: NewNodes) -> list[str]:
        """Return the UIDs of the pods that want a node of a type and for which no placeholder is there."""
        jobs = self._requests.jobs()
        wanting = [uid for uid, name in found.types.items() if name == kind_name and uid not in found.on_starting]
        orders = {uid: self._orders.order(uid, kind_name) for uid in wanting}
        return [uid for uid, order in orders.items() if order is None or order.jobs.isdisjoint(jobs)]

    def not_created(self, job: str, *, refused: bool) -> None:
        """Note that a Job does not exist; if it was ``refused``, as another one would be, its type pauses."""
        self._requests.not_created(job, refused=refused)

    def not_deleted(self, job: str) -> None:
        """Note that a Job could not be deleted; the next round tries again."""
        self._requests.not_deleted(job)

    def _forget(self, now_ns: int) -> set[str]:
        """Drop what was remembered of placeholders and pods that are gone; return types without their placeholder."""
        never_there = self._requests.forget_gone(now_ns)
        self._failures.forget_old(now_ns)
        released = self._waiting.waiting.keys() & self._waiting.once_gated
        self._released = {uid: self._released.get(uid, now_ns) for uid in released}
        return never_there


def _age(pod: Pod, now_ns: int) -> float:
    """Return how long ago a pod was created, in seconds."""
    return max(0.0, now_ns / _SECOND - unix_seconds(pod.metadata.creation_timestamp))
