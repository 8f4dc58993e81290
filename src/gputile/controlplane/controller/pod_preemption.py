"""Reserves GPUs for single pods that preempt, and chooses their victims.

kube-scheduler also preempts for single pods, and acts first. If kube-scheduler has nominated a node
for the pod, the GPUs that its victims free there are reserved for the pod. So no pod that replaces
a victim takes these GPUs. If kube-scheduler has found no victims, or if no GPUs could be reserved
for some time, victims are chosen here. The extender binds the pod once its GPUs are free. The
victims are chosen again in each round, so a new leader continues with the reservations it finds.
"""

from collections.abc import Callable, Collection

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_queue import Gang, gang_of_one
from gputile.controlplane.controller.gang_round import GangEvent, GangRound
from gputile.controlplane.controller.preemption import MOST_SEARCHES, Preemption, PreemptionState
from gputile.core.devices.allocation import Reservation, reservation_of
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.booking import Booking
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S
from gputile.core.scheduling.gang_victims import GangVictims
from gputile.core.scheduling.placement_engine import Decision
from gputile.core.scheduling.pod_filter import accepts_now
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch

_SECOND = 10**9
_NOMINATION_NS = 30 * _SECOND  # how long a nomination by kube-scheduler prevents a search


class PodPreemption:
    """Plans preemption for single pods. ``new_plan_name`` returns a unique name."""

    def __init__(
        self, shared: Preemption, configuration: Configuration, new_plan_name: Callable[[], str]
    ) -> None:
        self._shared, self._evictions = shared, shared.evictions
        self._settings, self._new_plan_name = configuration.preemption, new_plan_name
        # the snapshot and the result of the latest round
        self._state, self._result = ClusterState(configuration), GangRound()
        # a pod's nominated node, and the start of the nomination (Unix ns)
        self._nominated: dict[GangName, tuple[str, int]] = {}

    def plan(self, state: ClusterState, result: GangRound) -> None:
        """Reserve GPUs for the pods that may preempt, and evict their victims."""
        self._state, self._result = state, result
        gangs = [gang_of_one(pod) for pod in state.waiting.preemptors.values()]
        for name in self._nominated.keys() - {gang.name for gang in gangs}:
            del self._nominated[name]
        if not state.budgets_read:
            return
        for gang in gangs:
            self._advance(gang)
        lowest = min((booking.priority for booking in state.ledger.bookings()), default=0)
        due = [gang for gang in gangs if gang.priority > lowest and self._is_due(gang)]
        # the searches that failed in this round; equal pods need not repeat them
        hopeless: set[tuple[Request, bytes]] = set()

        def order(gang: Gang) -> tuple[int, int, str]:
            return -gang.priority, self._shared.back_off_end(gang.name), gang.oldest

        for gang in sorted(due, key=order)[:MOST_SEARCHES]:
            found = self._find(gang, hopeless)
            if found is not None:
                self._withdraw(found.withdrawn, gang.pod)
                self._reserve(gang, found)
        self._result.unfinished = self._result.unfinished or len(due) > MOST_SEARCHES

    def _is_due(self, gang: Gang) -> bool:
        if (
            self._state.ledger.booking(gang.pod.metadata.uid) is not None
            or reservation_of(gang.pod) is not None
        ):
            return False
        # No back-off if kube-scheduler preempts: its victims may be gone and replaced at once.
        return bool(self._nominated_node(gang)) or not self._shared.is_backing_off(gang)

    def _nominated_node(self, gang: Gang) -> str:
        """Return the recently nominated node if it still accepts the pod, or an empty string."""
        node, now_ns = gang.pod.status.nominated_node_name, self._state.now_ns
        before, since_ns = self._nominated.get(gang.name, ("", 0))
        if before != node:
            since_ns = now_ns
            self._nominated[gang.name] = node, since_ns
        is_recent = 0 <= now_ns - since_ns < _NOMINATION_NS
        return (
            node
            if is_recent
            and node in self._state.nodes
            and not self._shared.rejection(gang.pod, node)
            else ""
        )

    def _find(self, gang: Gang, hopeless: set[tuple[Request, bytes]]) -> GangVictims | None:
        pod, engine = gang.pod, self._state.placement.engine
        self._evictions.drop(gang.name)
        try:
            request = engine.request(pod)
        except RequestError:
            return None
        if request is None:
            return None
        if node := self._nominated_node(gang):
            return self._gpus_of_nominated_node(gang, request, node)
        self._shared.back_off(gang)
        search = (
            request,
            msgspec.json.encode(
                (pod.metadata.namespace, sorted(pod.metadata.labels.items()), pod.spec)
            ),
        )
        if search in hopeless:
            return None
        fits = engine.best_first(request, self._state.placement.predicates.open_nodes(pod))
        found = None if fits else self._shared.search(gang)
        if found is None or not self._is_worthwhile(gang, found):
            hopeless.add(search)
            return None
        return found

    def _gpus_of_nominated_node(
        self, gang: Gang, request: Request, node: str
    ) -> GangVictims | None:
        """Return GPUs of the nominated node for the pod, or None if there are too few.

        The GPUs are free, or will be freed by terminating pods. kube-scheduler has chosen the
        victims, also for CPU and memory. So this controller evicts no other pods, even if the
        victims are not deleted yet.
        """
        engine, now_ns = self._state.placement.engine, self._state.now_ns
        info = self._state.ledger.info_of(node)
        decision = engine.decide(request, node, now_ns)
        if not isinstance(decision, Decision):
            rules = self._evictions.rules(gang.name)
            choice = VictimSearch(engine, self._preemptor(gang, request), rules).on_node(node)
            if choice is None or choice.evicted or choice.withdrawn or info is None:
                return None
            decision = engine.decision(request, info, choice.gpus, now_ns)
        return (
            GangVictims({gang.pod.metadata.uid: decision}, ())
            if decision.allocation is not None
            else None
        )

    def _is_worthwhile(self, gang: Gang, found: GangVictims) -> bool:
        """Return whether the node accepts the pod, and lower-priority pods will free the GPUs."""
        place = found.places[gang.pod.metadata.uid]
        uuids = {gpu.uuid for gpu in place.gpus}
        # Terminating pods count, because pods that replace them must not take the GPUs.
        leave = (
            found.evicted
            or found.withdrawn
            or self._evictions.leaving_at(place.node, uuids, below=gang.priority)
        )
        return bool(leave) and accepts_now(self._state.ledger, gang.pod, place.node)

    def _reserve(self, gang: Gang, found: GangVictims) -> None:
        pod, place = gang.pod, found.places[gang.pod.metadata.uid]
        lasts_ns = self._shared.choose(gang, found, _preempted_by(pod, place.node))
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
        self._shared.write(pod, reservation, place.node)
        self._result.unfinished = True  # the victims are evicted once the reservation is stored
        gpus = ", ".join(f"GPU {gpu.index}" for gpu in place.gpus)
        victims = (
            f"; evicted pods: {self._evictions.pod_names(found.evicted)}" if found.evicted else ""
        )
        text = (
            f"{gpus} of node {place.node} reserved for the pod for at most "
            f"{lasts_ns // _SECOND} s{victims}"
        )
        self._result.events.append(GangEvent((pod,), EventReason.PREEMPTING, text, warning=False))

    def _advance(self, gang: Gang) -> None:
        """Evict the remaining victims of a stored reservation, or give the reservation up."""
        pod, reservation = gang.pod, reservation_of(gang.pod)
        if reservation is None:
            return
        booking = self._state.ledger.booking(pod.metadata.uid)
        if booking is None or not booking.reserved or booking.plan != reservation.plan:
            self._shared.give_up(gang, "the reservation is no longer valid")
            return
        # An earlier leader may have evicted the pods that are leaving.
        leaving = self._evictions.leaving_at(booking.node, {share.uuid for share in booking.gpus})
        has_evicted = bool(leaving) or self._evictions.victims(gang.name).has_evicted
        ends_ns = reservation.expires_ns, (self._settings.keep_seconds + MOST_GRACE_S) * _SECOND
        planned, bookings = [(pod, booking.node)], {pod.metadata.uid: booking}
        progress, why = self._shared.progress(
            gang, planned, bookings, ends_ns, has_evicted=has_evicted
        )
        if progress is PreemptionState.LOST:
            self._shared.give_up(gang, why)
        elif progress is PreemptionState.LEAVING:
            self._choose_again(gang, booking, has_evicted=has_evicted)
        else:
            self._evictions.choose(gang.name, (), "")

    def _choose_again(self, gang: Gang, booking: Booking, *, has_evicted: bool) -> None:
        """Choose and evict the victims on the reserved GPUs again, or give the reservation up."""
        engine = self._state.placement.engine
        request = engine.request(gang.pod)
        if request is None:
            return
        gpus = frozenset(share.uuid for share in booking.gpus)
        preemptor = self._preemptor(gang, request)
        choice = None
        # A victim whose eviction was refused may be needed.
        for refused_too in (False, True) if has_evicted else (False,):
            rules = self._evictions.rules(gang.name, refused_too=refused_too)
            choice = choice or VictimSearch(engine, preemptor, rules).on_node(booking.node, gpus)
        if choice is None:
            self._evictions.choose(gang.name, (), "")
            if not has_evicted:
                self._shared.give_up(
                    gang, "its victims can no longer be evicted, or no longer free enough"
                )
            return
        self._withdraw(choice.withdrawn, gang.pod)
        self._evictions.choose(gang.name, choice.evicted, _preempted_by(gang.pod, booking.node))
        self._shared.evict(gang)

    def _withdraw(self, uids: Collection[str], pod: Pod) -> None:
        """Give up reservations of pods with lower priority, so that ``pod`` can use the GPUs."""
        preemptors = self._state.waiting.preemptors
        for other in [preemptors[uid] for uid in uids if uid in preemptors]:
            self._shared.give_up(
                gang_of_one(other), f"pod {pod.key} of higher priority takes over its GPUs"
            )

    def _preemptor(self, gang: Gang, request: Request) -> Preemptor:
        return Preemptor(
            gang.pod.metadata.uid, request, gang.priority, self._state.now_ns / _SECOND
        )


def _preempted_by(pod: Pod, node: str) -> str:
    return f"preempted by pod {pod.key} on node {node}"
