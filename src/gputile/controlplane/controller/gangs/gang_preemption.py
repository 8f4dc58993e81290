"""Has pods of lower priority evicted for gangs, and reserves the GPUs that they leave.

First GPUs are reserved, by a plan that is not to start yet. When all reservations are written, the pods are evicted
that have to leave, and only if that still is enough for the whole plan. The plan starts when all its places are free.
It is given up if its first eviction is refused, if a place or a pod of it is lost, and when its time has ended; then
the gang waits before it tries again. Pods whose eviction was refused are not chosen again for a while
(``eviction_memory``). The next leader finds the reservations and the pods that leave, and plans anew. A gang that has
to leave whole does so whatever becomes of the plan.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.controlplane.eviction_memory import HalfLeftGangs, RefusedEvictions
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.ledger.booking import Booking
from gputile.core.placement.steps import at_once
from gputile.core.refusal import Refusal, ReservationRule
from gputile.core.scheduling.eviction_rules import SOON_S, EvictionBudget, EvictionFacts, EvictionRules
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.gang_plan import GangPlan
from gputile.core.scheduling.gang_victims import GangVictims, choose_gang_victims, is_enough
from gputile.core.scheduling.reserved_place import lost_reservation
from gputile.kube.errors import KubeError

_SECOND = 10**9
_REST_NS = 10 * _SECOND  # between two searches for one gang
MOST_SEARCHES = 16  # in one round
_RETRY_NS = 5 * _SECOND  # after an eviction that was refused
_EVICTED_NS = 60 * _SECOND  # an eviction that no watch has shown by then is taken to have come to nothing
_WAITING = frozenset({ReservationRule.GPU_TAKEN, ReservationRule.NODE_CLOSED})


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be evicted for a gang, and why; ``gang`` is None where the rest of its own gang has left."""

    gang: GangName | None
    uid: str
    namespace: str
    name: str
    why: str


class PreemptionState(Enum):
    """What has become of the places that pods leave for a gang."""

    LEAVING = "pods have to leave yet"
    FREE = "all are free"
    LOST = "one is lost, or their time has ended"


@dataclass(slots=True)
class PreemptionPlan:
    """The places of a gang, and the pods that leave them. Times are Unix time in nanoseconds.

    ``evicted`` has when the eviction of each pod was accepted. The reservations last ``lasts_ns`` at most.
    """

    plan: GangPlan
    victims: tuple[str, ...]
    until_ns: int
    lasts_ns: int
    evicted: dict[str, int] = field(default_factory=dict)
    retry_ns: int = 0
    refused: str = ""


class GangPreemption:
    """What it remembers is of gangs that have unbound pods. Evictions are counted from the start."""

    def __init__(self, configuration: Configuration) -> None:
        self.evictions = 0
        self.evictions_refused = 0
        self._cluster_state = ClusterState(configuration)  # the snapshot of the latest round
        self._configuration = configuration
        self._plans: dict[GangName, PreemptionPlan] = {}
        self._refused = RefusedEvictions(self._now_s, lambda uid: uid in self._cluster_state.bound_pods.facts)
        self._half_left = HalfLeftGangs(self._now_s, {}, {})
        self._rests: dict[GangName, tuple[frozenset[str], int]] = {}
        self._searches_left = 0

    def _now_s(self) -> float:
        return self._cluster_state.now_ns / _SECOND

    def begin(self, state: ClusterState, names: Collection[GangName]) -> None:
        """Begin a round on a snapshot; ``names`` are the gangs that have unbound pods."""
        self._cluster_state = state
        self._searches_left = MOST_SEARCHES
        self._half_left.see(state.bound_pods.facts, state.bound_pods.gangs)
        for remembered in (self._plans, self._rests):
            for name in remembered.keys() - names:
                del remembered[name]

    def plan_of(self, name: GangName) -> PreemptionPlan | None:
        """Return by what plan pods leave GPUs for a gang, None where there is none."""
        return self._plans.get(name)

    # -- a new plan

    def find(self, gang: Gang, closed: Collection[str] = ()) -> GangVictims | None:
        """Return places for the pods that start together, and who leaves; None where that is not to be.

        No place is on a node whose name is in ``closed``.
        """
        uids, now_ns = frozenset(pod.metadata.uid for pod in gang.unreserved), self._cluster_state.now_ns
        rested, until_ns = self._rests.get(gang.name, (frozenset(), 0))
        if rested == uids and 0 < until_ns - now_ns <= _REST_NS:
            return None
        if not self._may_preempt(gang) or self._searches_left <= 0:
            return None
        self._searches_left -= 1
        members: list[GangCandidate] = []
        try:
            for pod in gang.unreserved:
                members.append(GangCandidate(pod, self._cluster_state.placement.engine.request(pod)))
        except RequestError:
            return None
        self._rests[gang.name] = uids, now_ns + _REST_NS
        cluster = self._cluster_state.victim_search_input(closed)
        return at_once(choose_gang_victims(members, gang.needed, cluster, self._rules(), now_ns))

    def reserve(self, gang: Gang, found: GangVictims) -> GangPlan:
        """Note that these places are reserved for a gang; return the plan."""
        at_once(self._half_left.begin(found.evicted, self._rules(), gang.name, _why(gang.name)))
        longest = self._longest_s(found)
        lasts = self._configuration.preemption.keep_seconds + longest
        plan = GangPlan(found.places, True, True)
        until_ns = self._cluster_state.now_ns + lasts * _SECOND
        self._plans[gang.name] = PreemptionPlan(plan, found.evicted, until_ns, lasts * _SECOND)
        return plan

    def _longest_s(self, found: GangVictims) -> int:
        """Return in how many seconds all are to be gone that are evicted, or leave these places already."""
        state, now_s, longest = self._cluster_state, self._cluster_state.now_ns / _SECOND, 0
        facts = state.bound_pods.facts
        for uid in found.evicted:
            if (known := facts.get(uid)) is not None:
                longest = max(longest, known.grace_s)
        gpus = {chosen.gpu.uuid for place in found.places.values() for chosen in place.gpus}
        for node in {place.node for place in found.places.values()}:
            for booking in state.ledger.on_node(node):
                known = facts.get(booking.uid)
                if known is None or not known.leaves_at or known.leaves_at - now_s > SOON_S:
                    continue
                if any(share.uuid in gpus for share in booking.gpus):
                    longest = max(longest, int(known.leaves_at - now_s))
        return longest

    def _may_preempt(self, gang: Gang) -> bool:
        return (
            self._configuration.preemption.enabled
            and self._cluster_state.budgets_read
            and gang.below_min_member
            and not any(pod.spec.preemption_policy == "Never" for pod in gang.unreserved)
        )

    def _rules(self) -> EvictionRules:
        state = self._cluster_state
        return EvictionRules(
            state.bound_pods.facts,
            state.bound_pods.gangs,
            self._to_leave().union(self._half_left.under_way()),
            self._budget,
            gang_size=self._size_of_group,
        )

    def _to_leave(self) -> set[str]:
        """Return the victims of all plans that are not leaving yet: for other plans they count as gone."""
        facts = self._cluster_state.bound_pods.facts
        victims = (uid for preempting in self._plans.values() for uid in preempting.victims)
        return {uid for uid in victims if (known := facts.get(uid)) is not None and not known.leaves_at}

    def _budget(self, uid: str) -> EvictionBudget | None:
        """Return what guards a pod; one that was refused lately is not evicted, either."""
        return EvictionBudget(uid, 0) if self._refused.among([uid]) else self._cluster_state.budgets.budget(uid)

    def _size_of_group(self, name: GangName) -> int:
        """Return how many pods of a gang by PodGroup start together, 0 where its PodGroup says nothing."""
        groups = self._cluster_state.groups or {}
        return max(0, groups.get((name.namespace, name.name), 0)) if name.by_object else 0

    # -- reservations that were written

    def look(self, gang: Gang, preempting: PreemptionPlan) -> tuple[PreemptionState, str]:
        """Return what has become of the places of a gang, and why they are lost."""
        now_ns = self._cluster_state.now_ns
        if preempting.refused and not preempting.evicted:
            return PreemptionState.LOST, preempting.refused
        pods = {pod.metadata.uid: pod for pod in gang.unreserved}
        if not preempting.plan.places.keys() <= pods.keys():
            return PreemptionState.LOST, "its pods are others now"
        if len(preempting.plan.places) < gang.needed:
            return PreemptionState.LOST, f"it needs {gang.needed} places now"
        bookings = self._bookings(preempting)
        if bookings is None:
            return PreemptionState.LOST, "a reservation of it is not there"
        closed = self._closed(pods, preempting.plan)
        if closed:
            return PreemptionState.LOST, closed
        problems: list[Refusal[ReservationRule]] = []
        for booking in bookings.values():
            if (problem := lost_reservation(self._cluster_state.ledger, booking)) is not None:
                problems.append(problem)
        if not problems:
            return PreemptionState.FREE, ""
        for why in problems:
            if why.rule not in _WAITING:
                return PreemptionState.LOST, why.text
        if not 0 < preempting.until_ns - now_ns <= preempting.lasts_ns:
            return PreemptionState.LOST, "its time is over"
        cluster, rules = self._cluster_state.victim_search_input(), self._rules()
        if not preempting.evicted and rules.over_budget(preempting.victims):
            return PreemptionState.LOST, "not all pods that have to leave may be evicted any more"
        planned = [(pods[uid], place.node) for uid, place in preempting.plan.places.items()]
        if self._is_any_due(preempting) and not (
            at_once(is_enough(bookings, planned, frozenset(preempting.victims), cluster, rules, now_ns))
        ):
            return PreemptionState.LOST, "what the pods that have to leave would free is not enough any more"
        return PreemptionState.LEAVING, ""

    def _closed(self, pods: Mapping[str, Pod], plan: GangPlan) -> str:
        """Return which node of a plan takes a pod of it no longer, "" for none: it was cordoned, say."""
        for uid, place in plan.places.items():
            node = self._cluster_state.nodes.get(place.node)
            why = static_reason(pods[uid].spec, node) if node is not None else None
            if why is not None:
                return f"node {place.node} takes pod {pods[uid].key} no longer: {why.text}"
        return ""

    def due(self, name: GangName, preempting: PreemptionPlan) -> list[Eviction]:
        """Return the evictions to ask for now."""
        facts, why = self._cluster_state.bound_pods.facts, _why(name)
        due: list[Eviction] = []
        for uid in self._refused.first(preempting.victims):
            if self._is_due(uid, preempting):
                due.append(Eviction(name, uid, facts[uid].namespace, facts[uid].name, why))
        return due

    def rests(self) -> list[list[Eviction]]:
        """Return the evictions to ask for now of pods that stay of gangs which leave whole, gang by gang."""
        due = at_once(self._half_left.due(self._plans, self._to_leave()))
        return [[Eviction(None, uid, facts.namespace, facts.name, why) for uid, facts, why in rest] for rest in due]

    def _is_any_due(self, preempting: PreemptionPlan) -> bool:
        return any(self._is_due(uid, preempting) for uid in preempting.victims)

    def _is_due(self, uid: str, preempting: PreemptionPlan) -> bool:
        now_ns, known = self._cluster_state.now_ns, self._cluster_state.bound_pods.facts.get(uid)
        if 0 < preempting.retry_ns - now_ns <= _RETRY_NS or known is None or known.leaves_at:
            return False
        return not 0 <= now_ns - preempting.evicted.get(uid, -_EVICTED_NS) < _EVICTED_NS

    def ends_soon(self, preempting: PreemptionPlan, margin_ns: int) -> bool:
        """Return whether reservations of a plan end within ``margin_ns``."""
        ends = (self._cluster_state.reservation_end(uid) for uid in preempting.plan.places)
        return min(ends) - self._cluster_state.now_ns <= margin_ns

    def drop(self, gang: Gang) -> None:
        self._plans.pop(gang.name, None)
        uids = frozenset(pod.metadata.uid for pod in gang.unreserved)
        self._rests[gang.name] = uids, self._cluster_state.now_ns + _REST_NS

    def named(self, uids: Sequence[str], most: int = 5) -> str:
        facts = self._cluster_state.bound_pods.facts
        known: list[EvictionFacts] = [facts[uid] for uid in uids if uid in facts]
        more = f" and {len(known) - most} more" if len(known) > most else ""
        return ", ".join(f"{each.namespace}/{each.name}" for each in known[:most]) + more

    # -- what came of evictions

    def was_evicted(self, eviction: Eviction) -> None:
        self.evictions += 1
        self._half_left.was_evicted(eviction.uid)
        if (preempting := self._plan_for(eviction)) is not None:
            preempting.evicted[eviction.uid] = self._cluster_state.now_ns

    def was_gone(self, eviction: Eviction) -> None:
        """Note that the API server has no such pod any more: the watch tells."""
        self._half_left.was_evicted(eviction.uid)

    def was_refused(self, eviction: Eviction, why: str, error: KubeError) -> None:
        self.evictions_refused += 1
        self.evictions += error.may_have_been_executed
        self._refused.refused(eviction.uid, error)
        self._half_left.was_refused(eviction.uid, perhaps_evicted=error.may_have_been_executed)
        if (preempting := self._plan_for(eviction)) is not None:
            preempting.refused, preempting.retry_ns = why, self._cluster_state.now_ns + _RETRY_NS
            if error.may_have_been_executed:
                preempting.evicted[eviction.uid] = self._cluster_state.now_ns

    def _plan_for(self, eviction: Eviction) -> PreemptionPlan | None:
        return self._plans.get(eviction.gang) if eviction.gang is not None else None

    def _bookings(self, preempting: PreemptionPlan) -> dict[str, Booking] | None:
        """Return the reservations of a plan by UID, None where one is not there."""
        found: dict[str, Booking] = {}
        plans: Counter[str] = Counter()
        for uid, place in preempting.plan.places.items():
            booking = self._cluster_state.ledger.booking(uid)
            if place.allocation is None:
                continue
            if booking is None or not booking.reserved or booking.node != place.node:
                return None
            if {share.uuid for share in booking.gpus} != {chosen.gpu.uuid for chosen in place.gpus}:
                return None
            found[uid] = booking
            plans[booking.plan] += 1
        return found if len(plans) == 1 else None


def _why(name: GangName) -> str:
    return f"preempted by gang {name}"
