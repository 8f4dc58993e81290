"""Plans one round of asking for nodes: which placeholders to create and to delete, and what to say.

No I/O, no clock.

A pod is a reason for a new node if no GPU of any node has room for it, or if its gang lacks room for it, and an
empty node of a type that the autoscaler can add would take it. The autoscaler sees pods without a gate itself, and
adds nodes for those that do not fit the sums of any node; placeholders ask for the rest.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.api.timestamps import unix_seconds
from gputile.api.well_known import IDLE_NODE_ANNOTATION, NODE_TYPE_ANNOTATION
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangEvent, GangPlanner
from gputile.controlplane.controller.node_arrivals import NodeArrivals, TypeNodes
from gputile.controlplane.controller.node_orders import NodeOrders, Order
from gputile.controlplane.controller.placeholders import JOB_LABEL, placeholder_job
from gputile.controlplane.controller.waiting_line import WaitingLine, first_pods
from gputile.controlplane.controller.waiting_pods import WaitingPods
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.node_type import NodeType, node_types_of
from gputile.core.devices.node_type_refusal import NodeTypeRefusal, NodeTypeRule, worded
from gputile.core.devices.request import RequestError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.new_nodes import BarredTypes, NewNodes, new_nodes, nodes_unasked

_SECOND: Final = 10**9
SETTLING_SECONDS: Final = 5.0  # so long kube-scheduler and preemption may take to find a place
MOST_PODS: Final = 256  # single pods, and as many of gangs, that are looked at in one round
_LONGEST_PAUSE_SECONDS: Final = 3600
_REMEMBERED_SECONDS: Final = 24 * 3600  # so long after its pause a failure counts for how long the next pause is
_MOST_IDLE: Final = 100  # idle nodes of a type that placeholders stand on
_TOLD_AGAIN_SECONDS: Final = 1800  # the API server forgets an event after an hour
_PAUSES: Final = (NodeTypeRule.PAUSED, NodeTypeRule.NO_INVENTORY, NodeTypeRule.NOT_USABLE, NodeTypeRule.WENT_AWAY)


@dataclass(slots=True)
class NodeRequestRound:
    """What a round decided: Jobs of placeholders to create, names of Jobs to delete, and what to say.

    ``unmarked`` are placeholders that autoscalers cannot see yet.
    """

    created: list[Mapping[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unmarked: list[Pod] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Created:
    """A Job that has no pod yet: its type, when that counts no longer (Unix time, ns), and whether for an idle node."""

    type_name: str
    ends_ns: int
    idle: bool


@dataclass(frozen=True, slots=True)
class _Failed:
    """How often in a row no node of a type came that is of use, and for how long and until when none is asked for (ns).

    ``again_ns`` is Unix time. By a clock that was set back it is further away than the pause is long: then none is on.
    ``refusal`` says what happened the last time.
    """

    times: int
    pause_ns: int
    again_ns: int
    refusal: NodeTypeRefusal


class NodeRequestPlanner:
    """Decides round by round what is asked for; ``new_name`` gives each placeholder a name of its own.

    What exists is read from the cluster each time.
    """

    def __init__(
        self, cluster_state: ClusterState, waiting: WaitingPods, gangs: GangPlanner, new_name: Callable[[], str]
    ) -> None:
        self._new_name = new_name
        self._cluster_state = cluster_state
        self._waiting = waiting
        self._gangs = gangs
        self._configuration = cluster_state.ledger.configuration
        self._scaling = self._configuration.autoscaling
        self._types = node_types_of(self._configuration)
        self._created: dict[str, _Created] = {}  # by the Job's name, as long as it has no pod
        self._deleted: set[str] = set()
        self._failed: dict[str, _Failed] = {}
        self._orders = NodeOrders()
        self._line = WaitingLine()
        self._arrivals = NodeArrivals(cluster_state, self._types, self._scaling.wait_seconds * _SECOND)
        self._released: dict[str, int] = {}  # UID -> when the pod was first seen without the gate it had, Unix ns
        self._told: dict[str, dict[EventReason, tuple[str, int]]] = {}  # UID -> what was said last, and when (ns)
        self._refused = 0

    @property
    def refused(self) -> int:
        """How many pods without a place no node type could take, in the last round."""
        return self._refused

    def requested(self, *, idle: bool = False) -> Counter[str]:
        """Return how many nodes of each type are asked for; with ``idle`` the placeholders for nodes that are there."""
        jobs = {_job(pod) for pod in self._waiting.placeholders.values()}
        found = Counter(_type_name(pod) for pod in self._alive(idle=idle))
        new = ((job, created) for job, created in self._created.items() if created.idle is idle)
        return found + Counter(created.type_name for job, created in new if job not in jobs)

    def steps(self, now_ns: int) -> Steps[NodeRequestRound]:
        """Return, in steps, what to do now; the cluster state may not change meanwhile. ``now_ns`` is Unix time in ns.

        Whoever gives up half-way closes the steps.
        """
        result = NodeRequestRound()
        self._forget(now_ns)
        for type_name in self._orders.settle(self._cluster_state.knows, self._place):
            self._failed.pop(type_name, None)
        awaited = self._orders.types()
        if not (self._waiting.waiting or self._waiting.placeholders or self._gangs.without_room() or awaited):
            self._refused = 0
            self._arrivals.forget()
            return result
        alone = yield from self._without_place(now_ns)
        gangs = self._of_gangs()
        yield
        pods = [*alone, *gangs]
        nodes = yield from self._arrivals.look(awaited, now_ns)
        for type_name, of_type in nodes.items():
            for failure in of_type.failures[-1:]:
                self._fail(type_name, now_ns, failure)
        self._take_timeouts(now_ns, result)
        barred = yield from self._barred(pods, nodes, now_ns)
        starting = {name: each.starting for name, each in nodes.items()}
        found = yield from new_nodes(pods, self._types, starting, self._configuration, barred)
        # What the autoscaler has seen for so long and not added is asked for like the rest.
        fresh = [each for each in alone if self._waits(each.pod, now_ns) < self._scaling.wait_seconds]
        predicates = self._cluster_state.placement.predicates
        unasked = yield from nodes_unasked(fresh, self._types, predicates, self._configuration)
        wanted = found.counts - unasked
        self._adjust(wanted, nodes, found, now_ns, result)
        self._refused = len(found.refused)
        waiting = self._waiting.waiting.keys() | {pod.metadata.uid for pod in self._gangs.without_room()}
        self._line.note(found.types, found.refused, waiting)
        self._told = {uid: texts for uid, texts in self._told.items() if uid in waiting}
        self._tell(pods, found, wanted, now_ns, result)
        return result

    def abandon(self) -> None:
        """Forget what was decided in a round of which nothing is written."""
        self._created.clear()
        self._deleted.clear()
        self._told.clear()

    # -- what there is

    def _waits(self, pod: Pod, now_ns: int) -> float:
        """Return for how many seconds kube-scheduler and autoscalers have seen a pod: a gate hides it from them."""
        released_ns = self._released.get(pod.metadata.uid)
        return _age(pod, now_ns) if released_ns is None else abs(now_ns - released_ns) / _SECOND

    def _candidate(self, pod: Pod) -> GangCandidate | None:
        try:
            return GangCandidate(pod, self._cluster_state.placement.engine.request(pod))
        except RequestError:
            return None  # the extender tells

    def _without_place(self, now_ns: int) -> Steps[list[GangCandidate]]:
        """Return the pods that no node takes as things stand."""
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
            yield from placement.predicates.prepare(pod)
            names = [name for name, reason in placement.predicates.reasons(pod).items() if reason is None]
            if not placement.engine.filter(each.request, names).feasible:
                found.append(each)
            yield
        return found

    def _of_gangs(self) -> list[GangCandidate]:
        """Return the pods of gangs that lack room, gang by gang."""
        gangs: dict[GangName | None, list[Pod]] = {}
        for pod in self._gangs.without_room():
            gangs.setdefault(gang_of(pod), []).append(pod)
        pods = first_pods(self._line.ordered(gangs.values()), MOST_PODS)
        return [each for pod in pods if (each := self._candidate(pod)) is not None]

    def _place(self, uid: str) -> str | None:
        """Return the type of a bound pod's node, "" where it has none; None for a pod that is not bound."""
        booking = self._cluster_state.ledger.booking(uid)
        if booking is None or booking.reserved:
            return None
        node = self._cluster_state.nodes.get(booking.node)
        return next((kind.name for kind in self._types if node is not None and kind.has(node)), "")

    # -- which types may be asked for

    def _barred(self, pods: Sequence[GangCandidate], nodes: Mapping[str, TypeNodes], now_ns: int) -> Steps[BarredTypes]:
        """Return by UID and type why no node of the type is asked for that pod, though one as described would do."""
        barred: dict[tuple[str, str], NodeTypeRefusal] = {}
        empty = self._cluster_state.empty_placement
        for kind in self._types:
            usable, failed = nodes[kind.name].usable, self._failed.get(kind.name)
            for each in pods:
                key = each.pod.metadata.uid, kind.name
                if failed is not None and 0 < failed.again_ns - now_ns <= failed.pause_ns:
                    barred[key] = failed.refusal
                elif usable and each.request is not None:
                    yield from empty.predicates.prepare(each.pod)
                    lacking = empty.predicates.alone(each.pod)
                    taking = [name for name in usable if lacking.get(name) is None]
                    if not empty.engine.filter(each.request, taking).feasible:
                        barred[key] = NodeTypeRefusal(NodeTypeRule.NOT_AS_DESCRIBED, usable[0])
                    yield
        return barred

    def _fail(self, kind_name: str, now_ns: int, refusal: NodeTypeRefusal) -> None:
        """Ask for no node of a type for a while, each time for longer."""
        wait_ns = self._scaling.wait_seconds * _SECOND
        times = self._failed[kind_name].times + 1 if kind_name in self._failed else 1
        pause_ns = min(wait_ns << min(times - 1, 10), max(wait_ns, _LONGEST_PAUSE_SECONDS * _SECOND))
        self._failed[kind_name] = _Failed(times, pause_ns, now_ns + pause_ns, refusal)
        self._unsay(EventReason.NODE_NOT_ADDED, self._told)

    def _take_timeouts(self, now_ns: int, result: NodeRequestRound) -> None:
        """Give up placeholders that no node came for."""
        late = {_type_name(pod) for pod in self._alive() if _age(pod, now_ns) > self._scaling.wait_seconds}
        for name in late:
            self._fail(name, now_ns, NodeTypeRefusal(NodeTypeRule.PAUSED))
        for pod in self._alive():
            if _type_name(pod) in late:
                self._delete(_job(pod), result)

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
        requested, kinds = self.requested(), {kind.name: kind for kind in self._types}
        for name in requested.keys() | wanted.keys():
            joined = nodes[name].joined if name in nodes else 0
            alive = [pod for pod in self._alive() if _type_name(pod) == name]
            alive.sort(key=lambda pod: pod.metadata.creation_timestamp or "")
            ended = alive[: max(requested[name] - wanted[name], joined)]
            for pod in ended:
                self._delete(_job(pod), result)
            more = wanted[name] - requested[name] + len(ended)
            ready = [uid for uid in self._without_order(name, found) if not self._orders.pauses(uid, name, now_ns)]
            jobs = [self._create(kinds[name], now_ns, result) for _ in range(min(more, len(ready)))]
            if jobs:
                self._orders.note(ready, name, jobs, now_ns)
                self._unsay(EventReason.NODE_REQUESTED, ready)
        self._stand_on_idle(nodes, now_ns, result)
        result.unmarked = [pod for idle in (False, True) for pod in self._alive(idle=idle) if not pod.status.conditions]

    def _stand_on_idle(self, nodes: Mapping[str, TypeNodes], now_ns: int, result: NodeRequestRound) -> None:
        """Have a placeholder for each idle node of the types that are asked for: else an autoscaler adds none."""
        asked, there = self.requested(), self.requested(idle=True)
        for kind in self._types:
            wanted = min(nodes[kind.name].idle, _MOST_IDLE) if asked[kind.name] else 0
            for _ in range(wanted - there[kind.name]):
                self._create(kind, now_ns, result, idle=True)
        for name, count in there.items():
            wanted = min(nodes[name].idle, _MOST_IDLE) if name in nodes and asked[name] else 0
            alive = [pod for pod in self._alive(idle=True) if _type_name(pod) == name]
            for pod in alive[: max(0, count - wanted)]:
                self._delete(_job(pod), result)

    def _without_order(self, kind_name: str, found: NewNodes) -> list[str]:
        """Return the UIDs of the pods that want a node of a type and for which no placeholder is there."""
        jobs = {_job(pod) for pod in self._alive()} | self._created.keys()
        wanting = [uid for uid, name in found.types.items() if name == kind_name and uid not in found.on_starting]
        orders = {uid: self._orders.order(uid, kind_name) for uid in wanting}
        return [uid for uid, order in orders.items() if order is None or order.jobs.isdisjoint(jobs)]

    def _alive(self, *, idle: bool = False) -> list[Pod]:
        """Return the placeholders that ask for nodes; with ``idle`` those for nodes that are there."""
        found = (pod for pod in self._waiting.placeholders.values() if _job(pod) not in self._deleted)
        return [pod for pod in found if (IDLE_NODE_ANNOTATION in pod.metadata.annotations) is idle]

    def _create(self, kind: NodeType, now_ns: int, result: NodeRequestRound, *, idle: bool = False) -> str:
        name, wait = f"gputile-placeholder-{self._new_name()}", self._scaling.wait_seconds
        result.created.append(placeholder_job(name, kind, wait, idle=idle))
        # Also one whose answer is lost counts: two placeholders for one node would bring two.
        self._created[name] = _Created(kind.name, now_ns + wait * _SECOND, idle)
        return name

    def _delete(self, job: str, result: NodeRequestRound) -> None:
        self._deleted.add(job)
        result.deleted.append(job)

    def not_deleted(self, job: str) -> None:
        """Note that a Job could not be deleted; the next round tries again."""
        self._deleted.discard(job)

    def _forget(self, now_ns: int) -> None:
        """Drop what was remembered of placeholders and pods that are gone."""
        jobs, wait_ns = {_job(pod) for pod in self._waiting.placeholders.values()}, self._scaling.wait_seconds * _SECOND
        self._deleted &= jobs
        self._created = {
            job: created
            for job, created in self._created.items()
            if job not in jobs and 0 < created.ends_ns - now_ns <= wait_ns
        }
        released = self._waiting.waiting.keys() & self._waiting.once_gated
        self._released = {uid: self._released.get(uid, now_ns) for uid in released}
        remembered_ns = _REMEMBERED_SECONDS * _SECOND
        self._failed = {name: each for name, each in self._failed.items() if now_ns - each.again_ns < remembered_ns}

    # -- what is said

    def _tell(
        self,
        pods: Sequence[GangCandidate],
        found: NewNodes,
        wanted: Counter[str],
        now_ns: int,
        result: NodeRequestRound,
    ) -> None:
        pausing = {
            uid: order
            for name in wanted
            for uid in self._without_order(name, found)
            if self._orders.pauses(uid, name, now_ns) and (order := self._orders.order(uid, name)) is not None
        }
        for each in pods:
            uid = each.pod.metadata.uid
            kind, why = found.types.get(uid), found.refused.get(uid)
            if why is not None:
                paused = any(refusal.rule in _PAUSES for refusal in why.values())
                reason = EventReason.NODE_NOT_ADDED if paused else EventReason.NO_NODE_TYPE_FITS
                self._say(
                    each.pod, (reason, f"no node is asked for that could take the pod: {worded(why)}"), now_ns, result
                )
            elif uid in pausing:
                self._say(each.pod, (EventReason.NODE_NOT_ADDED, _pause_text(pausing[uid], kind)), now_ns, result)
            elif kind is not None and kind in wanted:
                text = _request_text(self._orders.order(uid, kind), kind)
                self._say(each.pod, (EventReason.NODE_REQUESTED, text), now_ns, result)

    def _say(self, pod: Pod, event: tuple[EventReason, str], now_ns: int, result: NodeRequestRound) -> None:
        """Say something about a pod, unless it was the last that was said for this reason, not long ago."""
        reason, text = event
        told = self._told.setdefault(pod.metadata.uid, {})
        before, at_ns = told.get(reason, ("", now_ns))
        if before != text or abs(now_ns - at_ns) >= _TOLD_AGAIN_SECONDS * _SECOND:
            told[reason] = text, now_ns
            warning = reason is not EventReason.NODE_REQUESTED
            result.events.append(GangEvent((pod,), reason, text, warning))

    def _unsay(self, reason: EventReason, uids: Iterable[str]) -> None:
        """Have it said anew of these pods: it has happened again."""
        for uid in uids:
            self._told.get(uid, {}).pop(reason, None)


def _request_text(order: Order | None, kind_name: str) -> str:
    text = f"no GPU has room for the pod: the autoscaler is asked for a node with the label {kind_name}"
    return text if order is None or order.times == 1 else f"{text}, number {order.times} for this pod"


def _pause_text(order: Order, kind_name: str | None) -> str:
    return (
        f"the autoscaler was asked {order.times} times for a node with the label {kind_name}, and the pod has "
        f"no place: the next one is asked for {order.pause_seconds} s after the last"
    )


def _age(pod: Pod, now_ns: int) -> float:
    """Return how far from now a pod was created, seconds: by a clock that was set back, it is still to come."""
    return abs(now_ns / _SECOND - unix_seconds(pod.metadata.creation_timestamp))


def _job(pod: Pod) -> str:
    return pod.metadata.labels.get(JOB_LABEL, "")


def _type_name(pod: Pod) -> str:
    return pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "")
