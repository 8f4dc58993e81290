"""Has pods of lower priority evicted for gangs, and reserves the GPUs that they leave.

First GPUs are reserved, by a plan that is not to start yet. When all reservations are written, the pods are evicted
that have to leave, and only if that still is enough for the whole plan. The plan starts when all its places are free.
It is given up if its first eviction is refused, if a place or a pod of it is lost, and when its time has ended; then
the gang waits before it tries again. The next leader finds the reservations and the pods that leave, and plans anew.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Eviction, Evictions
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import Refusal, ReservationRule
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan
from gputile.core.scheduling.gang_victims import GangVictims, choose_gang_victims, is_enough
from gputile.core.scheduling.reserved_place import lost_reservation

_SECOND = 10**9
_REST_NS = 10 * _SECOND  # between two searches for one gang
MOST_SEARCHES = 16  # in one round
_WAITING = frozenset({ReservationRule.GPU_TAKEN, ReservationRule.NODE_CLOSED})


class PreemptionState(Enum):
    """What has become of the places that pods leave for a gang."""

    LEAVING = "pods have to leave yet"
    FREE = "all are free"
    LOST = "one is lost, or their time has ended"


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The places of a gang, and the pods that leave them.

    The reservations end at ``until_ns``, Unix time in nanoseconds, and last ``lasts_ns`` at most.
    """

    plan: GangPlan
    victims: tuple[str, ...]
    until_ns: int
    lasts_ns: int


class GangPreemption:
    """What it remembers is of gangs that have unbound pods."""

    def __init__(self, configuration: Configuration, evictions: Evictions) -> None:
        self._cluster_state = ClusterState(configuration)  # that of the latest round
        self._configuration = configuration
        self._evictions = evictions
        self._plans: dict[GangName, PreemptionPlan] = {}
        self._rests: dict[GangName, tuple[frozenset[str], int]] = {}
        self._searches_left = 0

    def begin(self, state: ClusterState, names: Collection[GangName]) -> None:
        """Begin a round; ``names`` are the gangs that have unbound pods."""
        self._cluster_state = state
        self._searches_left = MOST_SEARCHES
        for name in self._plans.keys() - names:
            self._evictions.drop(name)
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
        rules = replace(self._evictions.rules(), withdraws=False)
        return choose_gang_victims(members, gang.needed, cluster, rules, now_ns)

    def reserve(self, gang: Gang, found: GangVictims) -> GangPlan:
        """Note that these places are reserved for a gang; return the plan."""
        self._evictions.choose(gang.name, found.evicted, _why(gang.name))
        gpus: dict[str, set[str]] = {}
        for place in found.places.values():
            gpus.setdefault(place.node, set()).update(chosen.gpu.uuid for chosen in place.gpus)
        leave_s = self._evictions.seconds_to_leave(found.evicted, gpus.items())
        lasts = self._configuration.preemption.keep_seconds + leave_s
        plan = GangPlan(found.places, True)
        until_ns = self._cluster_state.now_ns + lasts * _SECOND
        self._plans[gang.name] = PreemptionPlan(plan, found.evicted, until_ns, lasts * _SECOND)
        return plan

    def _may_preempt(self, gang: Gang) -> bool:
        return (
            self._configuration.preemption.enabled
            and self._cluster_state.budgets_read
            and gang.below_min_member
            and not any(pod.spec.preemption_policy == "Never" for pod in gang.unreserved)
        )

    # -- reservations that were written

    def look(self, gang: Gang, preempting: PreemptionPlan) -> tuple[PreemptionState, str]:
        """Return what has become of the places of a gang, and why they are lost."""
        now_ns = self._cluster_state.now_ns
        evicted = self._evictions.has_evicted(gang.name)
        if (refusal := self._evictions.refusal(gang.name)) and not evicted:
            return PreemptionState.LOST, refusal
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
        cluster, rules = self._cluster_state.victim_search_input(), self._evictions.rules(gang.name)
        if not evicted and rules.over_budget(preempting.victims):
            return PreemptionState.LOST, "not all pods that have to leave may be evicted any more"
        planned = [(pods[uid], place.node) for uid, place in preempting.plan.places.items()]
        if self._evictions.is_any_due(gang.name) and not (
            is_enough(bookings, planned, frozenset(preempting.victims), cluster, rules, now_ns)
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

    def due(self, gang: Gang) -> list[Eviction]:
        """Return the evictions to ask for now."""
        return self._evictions.due(gang.name, _why(gang.name), gang.unreserved)

    def ends_soon(self, preempting: PreemptionPlan, margin_ns: int) -> bool:
        """Return whether reservations of a plan end within ``margin_ns``."""
        ends = (self._cluster_state.reservation_end(uid) for uid in preempting.plan.places)
        return min(ends) - self._cluster_state.now_ns <= margin_ns

    def drop(self, gang: Gang) -> None:
        self._plans.pop(gang.name, None)
        self._evictions.drop(gang.name)
        uids = frozenset(pod.metadata.uid for pod in gang.unreserved)
        self._rests[gang.name] = uids, self._cluster_state.now_ns + _REST_NS

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
