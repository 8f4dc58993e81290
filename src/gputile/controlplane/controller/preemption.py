"""Decides which pods are evicted, and when, for gangs and for single pods (gangs of one).

GPUs are reserved first. Once the reservations are stored, the victims are evicted if that still
frees all reserved GPUs. Reservations are given up if the first eviction is refused, if a pod or a
reserved GPU is lost, and when they expire. The gang then backs off before it tries again.

A gang's plan may not start until all its GPUs are free. Then the controller writes it again as a
startable plan. A new leader finds the reservations and the terminating pods, and plans from there.

kube-scheduler preempts for single pods as well, and goes first. If it has nominated a node for the
pod, the GPUs that its victims leave there are reserved, so that no successor of a victim takes
them. If kube-scheduler has found no victims, or nothing could be reserved for some time, victims
are chosen here. The extender binds the pod as soon as its GPUs are free. The victims of a pod are
chosen again in each round, so a new leader continues with the reservations that it finds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Evictions
from gputile.controlplane.controller.gang_queue import Gang, gang_of_one
from gputile.controlplane.controller.gang_round import (
    GangEvent,
    GangRound,
    GangTurns,
    ReservationPatch,
)
from gputile.core.devices.allocation import Reservation, reservation_of
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import Request, RequestError
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan
from gputile.core.scheduling.gang_victims import GangVictims, choose_gang_victims, is_enough
from gputile.core.scheduling.placement_engine import Decision
from gputile.core.scheduling.pod_filter import takes_now
from gputile.core.scheduling.reservation_rules import lost_reservation
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch

_SECOND = 10**9
_BACKOFF_NS = 10 * _SECOND  # between two searches for the same gang or pod
_NOMINATION_NS = 30 * _SECOND  # how long a nomination by kube-scheduler prevents a search
MOST_SEARCHES = 16  # per round, for gangs and for pods each
_RENEW_PART = 4  # reservations are renewed in the last quarter of their time


class PreemptionState(Enum):
    """The state of GPUs that are reserved while victims still use them."""

    LEAVING = "some victims still have to leave"
    CLOSED = "a node accepts no pods at the moment, so nobody is evicted"
    FREE = "all GPUs are free"
    LOST = "a reservation is lost or has expired"


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The reservations of a gang whose victims have not all left.

    They last ``lasts_ns``, until ``until_ns`` (Unix).
    """

    plan: GangPlan
    until_ns: int
    lasts_ns: int


class Preemption:
    """Plans evictions in rounds. Its memory is bounded by the gangs and pods that may preempt.

    ``new_plan_name`` returns a unique name.
    """

    def __init__(self, configuration: Configuration, new_plan_name: Callable[[], str]) -> None:
        self.evictions = Evictions(configuration)
        self._settings, self._new_plan_name = configuration.preemption, new_plan_name
        # Of the latest round
        self._state, self._result = ClusterState(configuration), GangRound()
        self._plans: dict[GangName, PreemptionPlan] = {}
        # The gang's pods, and the end of the back-off (Unix ns)
        self._backoffs: dict[GangName, tuple[frozenset[str], int]] = {}
        # A pod's nominated node, and since when
        self._nominated: dict[GangName, tuple[str, int]] = {}
        self._searches_left = 0

    def begin(self, state: ClusterState, gangs: Collection[GangName], result: GangRound) -> None:
        """Begin a round on a snapshot, for these gangs and the pods that may preempt.

        Writes go to ``result``.
        """
        self._state, self._result, self._searches_left = state, result, MOST_SEARCHES
        names = {*gangs, *(gang_of_one(pod).name for pod in state.waiting.preemptors.values())}
        self.evictions.begin(state, names)
        for remembered in (self._plans, self._backoffs, self._nominated):
            for name in remembered.keys() - names:
                del remembered[name]

    # -- gangs

    def plan_of(self, name: GangName) -> PreemptionPlan | None:
        """Return the plan for which victims leave, None if the gang does not preempt."""
        return self._plans.get(name)

    def find(self, gang: Gang, closed: Collection[str]) -> GangVictims | None:
        """Return GPUs and victims for the pods that start together.

        It is None if none are found, or if the gang may not preempt. Nodes whose names are in
        ``closed`` are left out.
        """
        may_preempt = self._settings.enabled and self._state.budgets_read and gang.below_min_member
        if not may_preempt or any(pod.spec.preemption_policy == "Never" for pod in gang.unreserved):
            return None
        if self._is_backing_off(gang) or self._searches_left <= 0:
            return None
        self._searches_left -= 1
        self._back_off(gang)
        return self._search(gang, closed)

    def reserve(self, gang: Gang, found: GangVictims, turn: GangTurns) -> GangPlan:
        """Reserve GPUs that victims have to leave, by a plan that may not start yet; return it."""
        lasts_ns = self._choose(gang, found, f"preempted by gang {gang.name}")
        plan = GangPlan(found.places, True)
        self._plans[gang.name] = PreemptionPlan(plan, self._state.now_ns + lasts_ns, lasts_ns)
        turn.plan(gang, plan, len(plan.places), starts=False)
        return plan

    def go_on(self, gang: Gang, preempting: PreemptionPlan, turn: GangTurns) -> PreemptionState:
        """Evict the remaining victims, or give the plan up; forget it if all its GPUs are free."""
        state, why = self._gang_progress(gang, preempting)
        if state is PreemptionState.LOST:
            self.give_up(gang, why)
        elif state is PreemptionState.FREE:
            self._end(gang)
        elif self._ends_soon(preempting):
            turn.plan(gang, preempting.plan, len(preempting.plan.places), starts=False)
        elif state is PreemptionState.LEAVING:
            self._evict(gang)
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
        progress, why = self._progress(
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
        """Return the reservations of a plan by UID, None if one is missing."""
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

    def _ends_soon(self, preempting: PreemptionPlan) -> bool:
        margin_ns = self._state.ledger.configuration.gangs.hold_seconds * _SECOND // _RENEW_PART
        ends = (self._state.reservation_end(uid) for uid in preempting.plan.places)
        return min(ends) - self._state.now_ns <= margin_ns

    # -- single pods

    def plan_pods(self) -> None:
        """Reserve GPUs for the pods that may preempt, and evict their victims."""
        state = self._state
        gangs = [gang_of_one(pod) for pod in state.waiting.preemptors.values()]
        if not state.budgets_read:
            return
        for gang in gangs:
            self._go_on_with_pod(gang)
        lowest = min((booking.priority for booking in state.ledger.bookings()), default=0)
        due = [gang for gang in gangs if gang.priority > lowest and self._is_due(gang)]
        # Searches that failed in this round: replicas would repeat them
        hopeless: set[tuple[Request, bytes]] = set()
        for gang in sorted(due, key=self._order)[:MOST_SEARCHES]:
            found = self._find_for_pod(gang, hopeless)
            if found is not None:
                self._withdraw(found.withdrawn, gang.pod)
                self._reserve_for_pod(gang, found)
        self._result.unfinished = self._result.unfinished or len(due) > MOST_SEARCHES

    def _order(self, gang: Gang) -> tuple[int, int, str]:
        """Return the sort key: priority, then the time of the last search, then age."""
        _, last_ns = self._backoffs.get(gang.name, ((), 0))
        return -gang.priority, last_ns, gang.oldest

    def _is_due(self, gang: Gang) -> bool:
        if (
            self._state.ledger.booking(gang.pod.metadata.uid) is not None
            or reservation_of(gang.pod) is not None
        ):
            return False
        # There is no back-off for a pod that kube-scheduler preempts for: its victims may be gone
        # and replaced at once.
        return bool(self._nominated_node(gang)) or not self._is_backing_off(gang)

    def _nominated_node(self, gang: Gang) -> str:
        """Return the node that kube-scheduler nominated recently.

        It is "" if there is none, or if the node no longer accepts the pod.
        """
        node, now_ns = gang.pod.status.nominated_node_name, self._state.now_ns
        before, since_ns = self._nominated.get(gang.name, ("", 0))
        if before != node:
            since_ns = now_ns
            self._nominated[gang.name] = node, since_ns
        is_recent = 0 <= now_ns - since_ns < _NOMINATION_NS
        return (
            node
            if is_recent and node in self._state.nodes and not self._rejection(gang.pod, node)
            else ""
        )

    def _find_for_pod(self, gang: Gang, hopeless: set[tuple[Request, bytes]]) -> GangVictims | None:
        pod, engine = gang.pod, self._state.placement.engine
        self.evictions.drop(gang.name)
        try:
            request = engine.request(pod)
        except RequestError:
            return None
        if request is None:
            return None
        if node := self._nominated_node(gang):
            return self._left_by_others(gang, request, node)
        self._back_off(gang)
        search = (
            request,
            msgspec.json.encode(
                (pod.metadata.namespace, sorted(pod.metadata.labels.items()), pod.spec)
            ),
        )
        if search in hopeless:
            return None
        fits = engine.best_first(request, self._state.placement.predicates.open_nodes(pod))
        found = None if fits else self._search(gang)
        if found is None or not self._is_worth_it(gang, found):
            hopeless.add(search)
            return None
        return found

    def _left_by_others(self, gang: Gang, request: Request, node: str) -> GangVictims | None:
        """Return GPUs of the nominated node for the pod; None if there are too few.

        They are free, or terminating pods leave them. kube-scheduler has chosen the victims, also
        for CPU and memory: nobody else is evicted, even if they are not deleted yet.
        """
        engine, now_ns = self._state.placement.engine, self._state.now_ns
        info = self._state.ledger.info_of(node)
        decision = engine.decide(request, node, now_ns)
        if not isinstance(decision, Decision):
            rules = self.evictions.rules(gang.name)
            choice = VictimSearch(engine, self._preemptor(gang, request), rules).on_node(node)
            if choice is None or choice.evicted or choice.withdrawn or info is None:
                return None
            decision = engine.decision(request, info, choice.gpus, now_ns)
        return (
            GangVictims({gang.pod.metadata.uid: decision}, ())
            if decision.allocation is not None
            else None
        )

    def _is_worth_it(self, gang: Gang, found: GangVictims) -> bool:
        """Return whether the node accepts the pod, and pods of lower priority leave the GPUs."""
        place = found.places[gang.pod.metadata.uid]
        uuids = {gpu.uuid for gpu in place.gpus}
        # Terminating pods count: their successors must not take the GPUs.
        leave = (
            found.evicted
            or found.withdrawn
            or self.evictions.leaving_at(place.node, uuids, below=gang.priority)
        )
        return bool(leave) and takes_now(self._state.ledger, gang.pod, place.node)

    def _reserve_for_pod(self, gang: Gang, found: GangVictims) -> None:
        pod, place = gang.pod, found.places[gang.pod.metadata.uid]
        lasts_ns = self._choose(gang, found, _preempted_by(pod, place.node))
        reservation = Reservation(
            plan=f"preemption-{self._new_plan_name()}",
            size=1,
            pods=1,
            node=place.node,
            expires_ns=self._state.now_ns + lasts_ns,
            allocation=place.allocation,
            first=True,
            preemption=True,
        )
        self._write(pod, reservation, place.node)
        self._result.unfinished = True  # the victims are evicted once the reservation is stored
        gpus = ", ".join(f"GPU {gpu.index}" for gpu in place.gpus)
        victims = (
            f"; evicted for it: {self.evictions.named(found.evicted)}" if found.evicted else ""
        )
        text = (
            f"{gpus} of node {place.node} reserved for the pod for at most "
            f"{lasts_ns // _SECOND} s{victims}"
        )
        self._result.events.append(GangEvent((pod,), EventReason.PREEMPTING, text, warning=False))

    def _go_on_with_pod(self, gang: Gang) -> None:
        """Evict the victims that still use the GPUs of a stored reservation, or give it up."""
        pod, reservation = gang.pod, reservation_of(gang.pod)
        if reservation is None:
            return
        booking = self._state.ledger.booking(pod.metadata.uid)
        if booking is None or not booking.reserved or booking.plan != reservation.plan:
            self.give_up(gang, "the reservation is no longer valid")
            return
        # An earlier leader may have evicted the pods that are leaving.
        leaving = self.evictions.leaving_at(booking.node, {share.uuid for share in booking.gpus})
        has_evicted = bool(leaving) or self.evictions.victims(gang.name).has_evicted
        ends_ns = reservation.expires_ns, (self._settings.keep_seconds + MOST_GRACE_S) * _SECOND
        planned, bookings = [(pod, booking.node)], {pod.metadata.uid: booking}
        progress, why = self._progress(gang, planned, bookings, ends_ns, has_evicted=has_evicted)
        if progress is PreemptionState.LOST:
            self.give_up(gang, why)
        elif progress is PreemptionState.LEAVING:
            self._choose_again(gang, booking, has_evicted=has_evicted)
        else:
            self.evictions.choose(gang.name, (), "")

    def _choose_again(self, gang: Gang, booking: Booking, *, has_evicted: bool) -> None:
        """Choose and evict victims on a pod's reserved GPUs again, or give up the reservation."""
        engine = self._state.placement.engine
        request = engine.request(gang.pod)
        if request is None:
            return
        gpus = frozenset(share.uuid for share in booking.gpus)
        preemptor = self._preemptor(gang, request)
        choice = None
        # A refused victim may be needed
        for refused_too in (False, True) if has_evicted else (False,):
            rules = self.evictions.rules(gang.name, refused_too=refused_too)
            choice = choice or VictimSearch(engine, preemptor, rules).on_node(booking.node, gpus)
        if choice is None:
            self.evictions.choose(gang.name, (), "")
            if not has_evicted:
                self.give_up(gang, "its victims can no longer be evicted, or no longer free enough")
            return
        self._withdraw(choice.withdrawn, gang.pod)
        self.evictions.choose(gang.name, choice.evicted, _preempted_by(gang.pod, booking.node))
        self._evict(gang)

    def _withdraw(self, uids: Collection[str], pod: Pod) -> None:
        """Give up the reservations of pods of lower priority that ``pod`` takes over."""
        preemptors = self._state.waiting.preemptors
        for other in [preemptors[uid] for uid in uids if uid in preemptors]:
            self.give_up(
                gang_of_one(other), f"pod {pod.key} of higher priority takes over its GPUs"
            )

    def _preemptor(self, gang: Gang, request: Request) -> Preemptor:
        return Preemptor(
            gang.pod.metadata.uid, request, gang.priority, self._state.now_ns / _SECOND
        )

    def _write(self, pod: Pod, reservation: Reservation | None, node: str) -> None:
        self._state.expect(pod, reservation)
        self._result.reservations.append([ReservationPatch(pod, reservation, node)])

    # -- gangs and pods alike

    def _search(self, gang: Gang, closed: Collection[str] = ()) -> GangVictims | None:
        """Return the cheapest victims found.

        Only a single pod may take over reservations of other pods.
        """
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

    def _choose(self, gang: Gang, found: GangVictims, why: str) -> int:
        """Set the victims; return how long the reservations last, in ns.

        The victims are evicted from the next round on. The reservations last
        ``preemption.keepSeconds`` beyond the longest grace period of the victims and of terminating
        pods.
        """
        self.evictions.choose(gang.name, found.evicted, why)
        facts, now_s = self._state.evictable.facts, self._state.now_ns / _SECOND
        seconds = [float(facts[uid].grace_s) for uid in found.evicted if uid in facts]
        for place in found.places.values():
            leaving = self.evictions.leaving_at(place.node, {gpu.uuid for gpu in place.gpus})
            seconds += [at - now_s for at in leaving if at - now_s <= MOST_GRACE_S]
        return (self._settings.keep_seconds + ceil(max([0.0, *seconds]))) * _SECOND

    def _progress(
        self,
        gang: Gang,
        planned: Collection[tuple[Pod, str]],
        bookings: Mapping[str, Booking] | None,
        ends_ns: tuple[int, int],
        *,
        has_evicted: bool,
    ) -> tuple[PreemptionState, str]:
        """Return the state of reservations, and why they are lost.

        ``planned`` are the pods and their nodes. ``ends_ns`` is when the reservations expire, and
        their longest duration; reservations that expire later were written by a wrong clock.
        """
        state = self._state
        until_ns, lasts_ns = ends_ns
        if not 0 < until_ns - state.now_ns <= lasts_ns:
            return PreemptionState.LOST, "the reservation has expired"
        if bookings is None:
            return PreemptionState.LOST, "one of its reservations is missing"
        for pod, name in planned:
            if why := self._rejection(pod, name):
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
        taken = all(refusal.rule is ReservationRule.GPU_TAKEN for refusal in lost)
        open_nodes = all(
            takes_now(state.ledger, pod, name)
            for pod, name in planned
            if pod.metadata.uid in bookings
        )
        return (PreemptionState.LEAVING if taken and open_nodes else PreemptionState.CLOSED), ""

    def _rejection(self, pod: Pod, name: str) -> str:
        """Return why a node no longer accepts the pod, such as a cordon.

        It is "" if the node accepts the pod, or is gone.
        """
        node = self._state.nodes.get(name)
        why = static_reason(pod.spec, node) if node is not None else None
        return why.text if why is not None else ""

    def _evict(self, gang: Gang) -> None:
        if due := self.evictions.due(gang.name, gang.unreserved):
            self._result.evictions.append(due)

    def give_up(self, gang: Gang, why: str) -> None:
        """Give up the reservations, and the nomination of a single pod.

        A failed write is repeated in the next round. The planner of gangs removes or reuses a
        gang's reservations itself.
        """
        self._end(gang)
        if gang.is_single:
            self._write(gang.pod, None, "")
        whose = "the pod" if gang.is_single else f"gang {gang.name.name}"
        text = f"GPUs are no longer reserved for {whose}: {why}"
        self._result.events.append(GangEvent(gang.unreserved, EventReason.PREEMPTION_ENDED, text))

    def _end(self, gang: Gang) -> None:
        self._plans.pop(gang.name, None)
        self.evictions.drop(gang.name)
        self._back_off(gang)

    def _back_off(self, gang: Gang) -> None:
        uids = frozenset(pod.metadata.uid for pod in gang.unreserved)
        self._backoffs[gang.name] = uids, self._state.now_ns + _BACKOFF_NS

    def _is_backing_off(self, gang: Gang) -> bool:
        """Return whether the same pods were searched for recently.

        The back-off also ends if the clock is set back.
        """
        uids, until_ns = self._backoffs.get(gang.name, (frozenset(), 0))
        same = uids == frozenset(pod.metadata.uid for pod in gang.unreserved)
        return same and 0 < until_ns - self._state.now_ns <= _BACKOFF_NS


def _preempted_by(pod: Pod, node: str) -> str:
    return f"preempted by pod {pod.key} on node {node}"
