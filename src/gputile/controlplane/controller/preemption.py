"""Decides which pods are evicted, and when, for gangs and for single pods (gangs of one).

GPUs are reserved before pods are evicted. Once the reservations are stored, the victims are evicted
if their eviction still frees all reserved GPUs. Reservations are given up if the first eviction is
refused, if a pod or a reserved GPU is lost, and when the reservations expire. The gang then backs
off before its next attempt.

A gang's plan must not start until all its GPUs are free. Then the controller writes the plan again
as a plan that may start. A new leader finds the reservations and the terminating pods, and plans
from there. ``pod_preemption`` makes the plans of single pods.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Evictions
from gputile.controlplane.controller.gang_queue import Gang, gang_of_one
from gputile.controlplane.controller.gang_round import (
    GangEvent,
    GangRound,
    ReservationPatch,
    RoundBuilder,
)
from gputile.core.devices.allocation import Reservation
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan
from gputile.core.scheduling.gang_victims import GangVictims, choose_gang_victims, is_enough
from gputile.core.scheduling.pod_filter import accepts_now
from gputile.core.scheduling.reservation_rules import lost_reservation

_SECOND = 10**9
_BACKOFF_NS = 10 * _SECOND  # between two searches for the same gang or pod
MOST_SEARCHES = 16  # per round, for gangs and for single pods separately
_RENEW_PART = 4  # reservations are renewed in the last quarter of their time


class PreemptionState(Enum):
    """The state of GPUs that are reserved while victims still use them."""

    LEAVING = "some victims still have to leave"
    CLOSED = "a node accepts no pods at the moment, so nobody is evicted"
    FREE = "all GPUs are free"
    LOST = "a reservation is lost or has expired"


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The reservations of a gang whose victims have not all left."""

    plan: GangPlan
    until_ns: int  # when the reservations end, Unix time
    lasts_ns: int  # their duration


class Preemption:
    """Plans evictions in rounds. Its memory is bounded by the gangs and pods that may preempt."""

    def __init__(self, configuration: Configuration) -> None:
        self.evictions = Evictions(configuration)
        self._settings = configuration.preemption
        # the snapshot and the result of the latest round
        self._state, self._result = ClusterState(configuration), GangRound()
        self._plans: dict[GangName, PreemptionPlan] = {}
        # the gang's pods, and the end of the back-off (Unix ns)
        self._backoffs: dict[GangName, tuple[frozenset[str], int]] = {}
        self._searches_left = 0

    def begin(self, state: ClusterState, gangs: Collection[GangName], result: GangRound) -> None:
        """Begin a round on the snapshot ``state``. Decisions are added to ``result``."""
        self._state, self._result, self._searches_left = state, result, MOST_SEARCHES
        names = {*gangs, *(gang_of_one(pod).name for pod in state.waiting.preemptors.values())}
        self.evictions.begin(state, names)
        for remembered in (self._plans, self._backoffs):
            for name in remembered.keys() - names:
                del remembered[name]

    def plan_of(self, name: GangName) -> PreemptionPlan | None:
        """Return the gang's preemption plan, or None if the gang does not preempt."""
        return self._plans.get(name)

    def find(self, gang: Gang, closed: Collection[str]) -> GangVictims | None:
        """Return GPUs and victims for the pods that start together, or None.

        None means that there are no suitable victims, or that the gang may not preempt now. Nodes
        whose names are in ``closed`` are excluded.
        """
        may_preempt = self._settings.enabled and self._state.budgets_read and gang.below_min_member
        if not may_preempt or any(pod.spec.preemption_policy == "Never" for pod in gang.unreserved):
            return None
        if self.is_backing_off(gang) or self._searches_left <= 0:
            return None
        self._searches_left -= 1
        self.back_off(gang)
        return self.search(gang, closed)

    def reserve(self, gang: Gang, found: GangVictims, builder: RoundBuilder) -> GangPlan:
        """Reserve the GPUs that victims must free. Return the plan, which must not start yet."""
        lasts_ns = self.choose(gang, found, f"preempted by gang {gang.name}")
        plan = GangPlan(found.places, True)
        self._plans[gang.name] = PreemptionPlan(plan, self._state.now_ns + lasts_ns, lasts_ns)
        builder.plan(gang, plan, len(plan.places), starts=False)
        return plan

    def advance(
        self, gang: Gang, preempting: PreemptionPlan, builder: RoundBuilder
    ) -> PreemptionState:
        """Evict the remaining victims, or end the preemption if it failed or its GPUs are free."""
        hold_ns = self._state.ledger.configuration.gangs.hold_seconds * _SECOND
        renew_ns = self._state.now_ns + hold_ns // _RENEW_PART
        state, why = self._gang_progress(gang, preempting)
        if state is PreemptionState.LOST:
            self.give_up(gang, why)
        elif state is PreemptionState.FREE:
            self._end(gang)
        elif min(map(self._state.reservation_end, preempting.plan.places)) <= renew_ns:
            builder.plan(gang, preempting.plan, len(preempting.plan.places), starts=False)
        elif state is PreemptionState.LEAVING:
            self.evict(gang)
        return state

    def _gang_progress(self, gang: Gang, preempting: PreemptionPlan) -> tuple[PreemptionState, str]:
        places, victims = preempting.plan.places, self.evictions.victims(gang.name)
        pods = {pod.metadata.uid: pod for pod in gang.unreserved}
        if not places.keys() <= pods.keys():
            return PreemptionState.LOST, "its pods have changed"
        if len(places) < gang.needed:
            return PreemptionState.LOST, f"it now needs GPUs for {gang.needed} pods"
        bookings = self._bookings(preempting)
        planned = [(pods[uid], place.node) for uid, place in places.items()]
        ends_ns = preempting.until_ns, preempting.lasts_ns
        progress, why = self.progress(
            gang, planned, bookings, ends_ns, has_evicted=victims.has_evicted
        )
        if progress is not PreemptionState.LEAVING or bookings is None:
            return progress, why
        cluster, rules = self._state.victim_search_input(), self.evictions.rules(gang.name)
        if not victims.has_evicted and rules.over_budget(victims.uids):
            return (
                PreemptionState.LOST,
                "a PodDisruptionBudget no longer allows the eviction of all victims",
            )
        if self.evictions.due(gang.name, ()) and not (
            is_enough(
                bookings, planned, frozenset(victims.uids), cluster, rules, self._state.now_ns
            )
        ):
            return PreemptionState.LOST, "the eviction of the victims would no longer free enough"
        return progress, ""

    def _bookings(self, preempting: PreemptionPlan) -> dict[str, Booking] | None:
        """Return the bookings of a plan's pods by UID, or None if a reservation is missing."""
        found: dict[str, Booking] = {}
        plans: Counter[str] = Counter()
        for uid, place in preempting.plan.places.items():
            booking = self._state.ledger.booking(uid)
            if place.allocation is None:
                continue
            if booking is None or not booking.reserved or booking.node != place.node:
                return None
            if {share.uuid for share in booking.gpus} != {gpu.uuid for gpu in place.gpus}:
                return None
            found[uid] = booking
            plans[booking.plan] += 1
        return found if len(plans) == 1 else None

    def search(self, gang: Gang, closed: Collection[str] = ()) -> GangVictims | None:
        """Return the cheapest victims, or None. Only a single pod may take over reserved GPUs."""
        state = self._state
        try:
            members = [
                GangCandidate(pod, state.placement.engine.request(pod)) for pod in gang.unreserved
            ]
        except RequestError:
            return None
        rules = replace(self.evictions.rules(), withdraws=gang.is_single)
        return choose_gang_victims(
            members, gang.needed, state.victim_search_input(closed), rules, state.now_ns
        )

    def choose(self, gang: Gang, found: GangVictims, why: str) -> int:
        """Set the victims, and return the duration of the reservations in nanoseconds.

        The victims are evicted from the next round on. The reservations last
        ``preemption.keepSeconds`` beyond the longest grace period of the victims and of the pods
        that already terminate.
        """
        self.evictions.choose(gang.name, found.evicted, why)
        facts, now_s = self._state.evictable.facts, self._state.now_ns / _SECOND
        seconds = [float(facts[uid].grace_s) for uid in found.evicted if uid in facts]
        for place in found.places.values():
            leaving = self.evictions.leaving_at(place.node, {gpu.uuid for gpu in place.gpus})
            seconds += [at - now_s for at in leaving if at - now_s <= MOST_GRACE_S]
        return (self._settings.keep_seconds + ceil(max([0.0, *seconds]))) * _SECOND

    def progress(
        self,
        gang: Gang,
        planned: Collection[tuple[Pod, str]],
        bookings: Mapping[str, Booking] | None,
        ends_ns: tuple[int, int],
        *,
        has_evicted: bool,
    ) -> tuple[PreemptionState, str]:
        """Return the state of reservations, and the reason if the reservations are lost.

        ``planned`` contains the pods and their nodes. ``ends_ns`` contains the Unix time at which
        the reservations end, and their longest possible duration. If the end is further ahead than
        this duration, a clock was wrong, and the reservations count as lost.
        """
        state = self._state
        until_ns, lasts_ns = ends_ns
        if not 0 < until_ns - state.now_ns <= lasts_ns:
            return PreemptionState.LOST, "the reservation has expired"
        if bookings is None:
            return PreemptionState.LOST, "one of its reservations is missing"
        for pod, name in planned:
            if why := self.rejection(pod, name):
                return PreemptionState.LOST, f"node {name} no longer accepts pod {pod.key}: {why}"
        judged = (lost_reservation(state.ledger, booking) for booking in bookings.values())
        lost = [refusal for refusal in judged if refusal is not None]
        for refusal in lost:
            if refusal.rule not in (ReservationRule.GPU_TAKEN, ReservationRule.NODE_CLOSED):
                return PreemptionState.LOST, refusal.text
        if not lost:
            return PreemptionState.FREE, ""
        if not has_evicted and (why := self.evictions.victims(gang.name).refused):
            return PreemptionState.LOST, why
        in_use = all(refusal.rule is ReservationRule.GPU_TAKEN for refusal in lost)
        open_nodes = all(
            accepts_now(state.ledger, pod, name)
            for pod, name in planned
            if pod.metadata.uid in bookings
        )
        return (PreemptionState.LEAVING if in_use and open_nodes else PreemptionState.CLOSED), ""

    def rejection(self, pod: Pod, name: str) -> str:
        """Return why a node no longer accepts the pod, or "" if the node is suitable or gone."""
        node = self._state.nodes.get(name)
        why = static_reason(pod.spec, node) if node is not None else None
        return why.text if why is not None else ""

    def evict(self, gang: Gang) -> None:
        if due := self.evictions.due(gang.name, gang.unreserved):
            self._result.evictions.append(due)

    def write(self, pod: Pod, reservation: Reservation | None, node: str) -> None:
        self._state.assume_write(pod, reservation)
        self._result.reservations.append([ReservationPatch(pod, reservation, node)])

    def give_up(self, gang: Gang, why: str) -> None:
        """Give up the reservations, and the nomination of a single pod.

        For a single pod, a failed write is repeated in the next round. For a gang, the gang
        planner removes or reuses the reservations.
        """
        self._end(gang)
        if gang.is_single:
            self.write(gang.pod, None, "")
        whose = "the pod" if gang.is_single else f"gang {gang.name.name}"
        text = f"GPUs are no longer reserved for {whose}: {why}"
        self._result.events.append(GangEvent(gang.unreserved, EventReason.PREEMPTION_ENDED, text))

    def _end(self, gang: Gang) -> None:
        self._plans.pop(gang.name, None)
        self.evictions.drop(gang.name)
        self.back_off(gang)

    def back_off(self, gang: Gang) -> None:
        uids = frozenset(pod.metadata.uid for pod in gang.unreserved)
        self._backoffs[gang.name] = uids, self._state.now_ns + _BACKOFF_NS

    def back_off_end(self, name: GangName) -> int:
        """Return the end of the latest back-off in Unix nanoseconds, or 0 if there was none."""
        return self._backoffs.get(name, (frozenset(), 0))[1]

    def is_backing_off(self, gang: Gang) -> bool:
        """Return whether a search for the same pods was made recently.

        The back-off also ends if the clock is set back.
        """
        uids, until_ns = self._backoffs.get(gang.name, (frozenset(), 0))
        same = uids == frozenset(pod.metadata.uid for pod in gang.unreserved)
        return same and 0 < until_ns - self._state.now_ns <= _BACKOFF_NS
