"""Has pods of lower priority evicted for single pods, and reserves the GPUs that they leave.

kube-scheduler goes first. If it has nominated a node for the pod, what its victims leave there is reserved, so that
their successors do not take it. If it has found no victims, or there is nothing to reserve after some time, victims are
chosen here (``gang_victims``: a pod is a gang of one).

First the reservation is written, together with ``nominatedNodeName``. Once it is stored, pods are evicted until the
reserved GPUs are free; who still has to leave is decided anew in each round, so another leader goes on with the
reservations that it finds. A reservation is given up if the first eviction is refused, if its GPUs are lost for another
reason, and when its time has ended.
"""

from collections.abc import Callable, Collection

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Evictions
from gputile.controlplane.controller.gangs.gang_round import GangEvent, GangRound, ReservationPatch
from gputile.core.devices.allocation import Reservation, reservation_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import choose_gang_victims
from gputile.core.scheduling.placement_engine import Decision
from gputile.core.scheduling.pod_filter import kept_off, takes_now
from gputile.core.scheduling.reserved_place import lost_reservation
from gputile.core.scheduling.victim_choice import Preemptor, VictimChoice, choose_victims

_SECOND = 10**9
_REST_NS = 10 * _SECOND  # between two searches for one pod
_NOMINATION_NS = 30 * _SECOND  # so long kube-scheduler's own nomination of a node goes before a search
MOST_SEARCHES = 16  # in one round
_PASSING = frozenset({ReservationRule.GPU_TAKEN, ReservationRule.NODE_CLOSED})
_TIME_IS_OVER = "its time is over"


class PodPreemption:
    """Plans what to write in a round; ``new_plan_name`` returns a name that no plan has had.

    What it remembers is of pods that may preempt, and goes with them.
    """

    def __init__(self, configuration: Configuration, evictions: Evictions, new_plan_name: Callable[[], str]) -> None:
        self.reserved = 0
        self._configuration, self._evictions, self._new_plan_name = configuration, evictions, new_plan_name
        self._state, self._result = ClusterState(configuration), GangRound()  # those of the latest round
        self._rests: dict[str, int] = {}  # UID -> until when no search is made, Unix time in nanoseconds
        self._nominated: dict[str, tuple[str, int]] = {}  # UID -> the node, and since when

    def plan(self, state: ClusterState, result: GangRound) -> None:
        """Add to ``result`` what to write now; ``state`` has it in the end."""
        self._state, self._result = state, result
        pods = state.waiting.preemptors.copy()
        self._forget(pods)
        if not state.budgets_read:
            return
        for pod in pods.values():
            if (reservation := reservation_of(pod)) is not None:
                self._go_on(pod, reservation)
        lowest = min((booking.priority for booking in state.ledger.bookings()), default=0)
        due = [pod for uid, pod in pods.items() if self._is_due(uid, pod) and (pod.spec.priority or 0) > lowest]
        hopeless: set[bytes] = set()
        for pod in sorted(due, key=self._order)[:MOST_SEARCHES]:
            self._begin(pod, hopeless)
        result.unfinished = result.unfinished or len(due) > MOST_SEARCHES

    def _forget(self, pods: Collection[str]) -> None:
        for uid in [uid for uid in (*self._rests, *self._nominated) if uid not in pods]:
            self._rests.pop(uid, None)
            self._nominated.pop(uid, None)
            self._evictions.drop(uid)

    def _order(self, pod: Pod) -> tuple[int, int, str]:
        """Return the place in line: by priority, then who was searched for longest ago, then by age."""
        last_ns = self._rests.get(pod.metadata.uid, 0)
        return -(pod.spec.priority or 0), last_ns, pod.metadata.creation_timestamp or ""

    def _is_due(self, uid: str, pod: Pod) -> bool:
        if self._state.ledger.booking(uid) is not None or reservation_of(pod) is not None:
            return False
        rests_ns = self._rests.get(uid, 0) - self._state.now_ns
        # A pod that kube-scheduler preempts for does not rest: its victims may be gone at once, and others may come.
        return bool(self._nominated_node(pod)) or not 0 < rests_ns <= _REST_NS

    # -- a new reservation

    def _begin(self, pod: Pod, hopeless: set[bytes]) -> None:
        """Find and reserve GPUs for a pod; ``hopeless`` are the searches of the round that have found nothing."""
        uid, now_ns = pod.metadata.uid, self._state.now_ns
        try:
            request = self._state.placement.engine.request(pod)
        except RequestError:
            request = None
        self._evictions.drop(uid)
        if request is None:
            return
        if node := self._nominated_node(pod):
            place = self._left(pod, request, node)
        else:
            self._rests[uid] = now_ns + _REST_NS
            search = msgspec.json.encode((pod.metadata.namespace, sorted(pod.metadata.labels.items()), pod.spec))
            place = self._place(pod, request) if search not in hopeless else None
            if place is None:
                hopeless.add(search)
        if place is None:
            return
        self._withdraw(place.withdrawn, pod)
        self._reserve(pod, request, place)

    def _nominated_node(self, pod: Pod) -> str:
        """Return the node that kube-scheduler has nominated lately, "" for none, and if it takes the pod no longer."""
        uid, node = pod.metadata.uid, pod.status.nominated_node_name
        if self._nominated.get(uid, ("", 0))[0] != node:
            self._nominated[uid] = node, self._state.now_ns
        waited_ns = self._state.now_ns - self._nominated.get(uid, ("", 0))[1]
        if not node or not 0 <= waited_ns < _NOMINATION_NS or kept_off(self._state.ledger, pod, node) is not None:
            return ""
        return node

    def _preemptor(self, pod: Pod, request: Request) -> Preemptor:
        return Preemptor(pod.metadata.uid, request, pod.spec.priority or 0, self._state.now_ns / _SECOND)

    def _place(self, pod: Pod, request: Request) -> VictimChoice | None:
        """Return the GPUs that cost least.

        None where no evictions are enough, where none are needed, and where only pods of its priority leave.
        """
        state = self._state
        if state.placement.engine.best_first(request, state.placement.predicates.open_nodes(pod)):
            return None
        found = choose_gang_victims(
            [GangCandidate(pod, request)], 1, state.victim_search_input(), self._evictions.rules(), state.now_ns
        )
        if found is None:
            return None
        decision = found.places[pod.metadata.uid]
        gpus = tuple(chosen.gpu for chosen in decision.gpus)
        # Pods leave by themselves. If they are of lower priority, their successors are not to take the GPUs.
        uuids = {gpu.uuid for gpu in gpus}
        leave = self._evictions.leaving_at(decision.node, uuids, below=pod.spec.priority or 0)
        if not (found.evicted or found.withdrawn or leave) or not takes_now(state.ledger, pod, decision.node):
            return None
        return VictimChoice(decision.node, gpus, found.evicted, found.withdrawn, found.loss)

    def _left(self, pod: Pod, request: Request, node: str) -> VictimChoice | None:
        """Return GPUs of the nominated node that kube-scheduler's victims leave, once nobody else need leave them."""
        engine = self._state.placement.engine
        decision = engine.decide(request, node, self._state.now_ns)
        if isinstance(decision, Decision):
            gpus = tuple(chosen.gpu for chosen in decision.gpus)
            return VictimChoice(node, gpus, (), ()) if decision.allocation is not None else None
        rules = self._evictions.rules(soon_s=MOST_GRACE_S)
        place = choose_victims(engine, self._preemptor(pod, request), (node,), rules)
        # Whom kube-scheduler evicts may not have been told to leave yet.
        return place if place is not None and not place.evicted and not place.withdrawn else None

    def _reserve(self, pod: Pod, request: Request, place: VictimChoice) -> None:
        state, uid = self._state, pod.metadata.uid
        info = state.ledger.info_of(place.node)
        if info is None:
            return
        gpus = {gpu.uuid for gpu in place.gpus}
        leave_s = self._evictions.seconds_to_leave(place.evicted, [(place.node, gpus)], MOST_GRACE_S)
        lasts = self._configuration.preemption.keep_seconds + leave_s
        reservation = Reservation(
            plan=f"preemption-{self._new_plan_name()}",
            size=1,
            pods=1,
            node=place.node,
            expires_ns=state.now_ns + lasts * _SECOND,
            allocation=state.placement.engine.decision(request, info, place.gpus, state.now_ns).allocation,
            first=True,
            preemption=True,
        )
        self.reserved += 1
        self._write(pod, reservation, place.node)
        self._evictions.choose(uid, place.evicted, _why(pod, place.node))
        self._result.unfinished = True  # who has to leave is evicted once the reservation is stored
        named = ", ".join(f"GPU {gpu.index}" for gpu in place.gpus)
        leave = f"; {self._evictions.named(place.evicted)} must leave" if place.evicted else ""
        text = f"node {place.node}: {named} reserved for the pod for {lasts} s at most{leave}"
        self._result.events.append(GangEvent((pod,), EventReason.PREEMPTING, text, warning=False))

    def _write(self, pod: Pod, reservation: Reservation | None, node: str) -> None:
        self._state.expect(pod, reservation)
        self._result.reservations.append([ReservationPatch(pod, reservation, node)])

    # -- reservations that are stored

    def _go_on(self, pod: Pod, reservation: Reservation) -> None:
        """Have the pods leave that still have to, or give the reservation up."""
        state, uid = self._state, pod.metadata.uid
        booking = state.ledger.booking(uid)
        longest_ns = (self._configuration.preemption.keep_seconds + MOST_GRACE_S) * _SECOND
        # One that ends later than any should was written while a clock was wrong.
        if not 0 < reservation.expires_ns - state.now_ns <= longest_ns:
            self._give_up(pod, _TIME_IS_OVER)
            return
        if booking is None or not booking.reserved or booking.plan != reservation.plan:
            self._give_up(pod, "its GPUs are not reserved any more")
            return
        lost = lost_reservation(state.ledger, booking)
        if lost is not None and lost.rule not in _PASSING:
            self._give_up(pod, lost.text)
        elif (why := kept_off(state.ledger, pod, booking.node)) is not None:
            self._give_up(pod, f"node {booking.node} takes the pod no longer: {why.text}")
        elif (refusal := self._evictions.refusal(uid)) and not self._has_evicted(pod, booking):
            self._give_up(pod, refusal)
        elif lost is None or lost.rule is not ReservationRule.GPU_TAKEN:
            self._evictions.choose(uid, (), "")
        elif takes_now(state.ledger, pod, booking.node):
            self._have_others_leave(pod, booking)

    def _has_evicted(self, pod: Pod, booking: Booking) -> bool:
        """Return whether pods leave for a pod; another leader may have evicted them."""
        leaving = self._evictions.leaving_at(booking.node, {share.uuid for share in booking.gpus})
        return bool(leaving) or self._evictions.has_evicted(pod.metadata.uid)

    def _have_others_leave(self, pod: Pod, booking: Booking) -> None:
        uid, engine = pod.metadata.uid, self._state.placement.engine
        request = engine.request(pod)
        if request is None:
            return
        gpus = frozenset(share.uuid for share in booking.gpus)
        preemptor, evicted = self._preemptor(pod, request), self._has_evicted(pod, booking)
        place = None
        for refused_too in (False, True) if evicted else (False,):  # whose eviction was refused may be needed
            rules = self._evictions.rules(uid, refused_too=refused_too, soon_s=MOST_GRACE_S)
            place = place or choose_victims(engine, preemptor, (booking.node,), rules, gpus)
        if place is None:
            self._evictions.choose(uid, (), "")
            if not evicted:
                self._give_up(pod, "the pods that have to leave may not be evicted any more")
            return
        self._withdraw(place.withdrawn, pod)
        why = _why(pod, booking.node)
        self._evictions.choose(uid, place.evicted, why)
        if due := self._evictions.due(uid, why, (pod,)):
            self._result.evictions.append(due)

    def _withdraw(self, uids: Collection[str], pod: Pod) -> None:
        """Give up the reservations of pods of lower priority whose GPUs ``pod`` gets."""
        preemptors = self._state.waiting.preemptors
        for other in [preemptors[uid] for uid in uids if uid in preemptors]:
            self._give_up(other, f"pod {pod.key} of higher priority takes its place")

    def _give_up(self, pod: Pod, why: str) -> None:
        """Remove the reservation of a pod, and its nomination; if that fails it is tried again in the next round."""
        self._rests[pod.metadata.uid] = self._state.now_ns + _REST_NS
        self._evictions.drop(pod.metadata.uid)
        self._write(pod, None, "")
        text = f"no GPUs are reserved for the pod any more: {why}"
        self._result.events.append(GangEvent((pod,), EventReason.PREEMPTION_ENDED, text))


def _why(pod: Pod, node: str) -> str:
    return f"preempted by pod {pod.key} on node {node}"
