"""Frees GPUs for pods of higher priority where kube-scheduler finds no victims, or its victims leave.

kube-scheduler asks first: a pod is looked at some time after it was refused. Where kube-scheduler has nominated a node,
and its victims leave, the place that becomes free is kept; elsewhere victims are chosen here (``victim_choice``).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import msgspec

from gputile.api.core import Pod
from gputile.controlplane.eviction_memory import RETRY_S
from gputile.controlplane.extender.binder import BinderClock
from gputile.controlplane.extender.evictions import EvictionSources
from gputile.controlplane.extender.pod_api import PodEvent, PreemptionApi
from gputile.controlplane.extender.preemption_queue import REST_S, PreemptionQueue, RefusedPod
from gputile.controlplane.extender.preemption_reservations import PreemptionReservations
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import Request, Shape
from gputile.core.devices.reservation import reservation_of
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.pod_filter import kept_off, takes_now
from gputile.core.scheduling.victim_choice import MOST_NODES, VictimChoice, VictimSearch, choose_victims

PERIOD_S = 0.5
ROUND_S = 1.0  # of searches: whoever is left waits for the next round, so that reservations are not forgotten
AGAIN_S = 30.0  # until the next search for a pod that nobody has refused meanwhile
NOMINATION_S = 30.0  # so long kube-scheduler's own nomination of a node goes before a search


_Search = tuple[Shape, int, frozenset[str], bytes]  # what is asked for, the priority, and the nodes: see _search


class Preemption:
    """Finds places for pods for which the extender named no node to kube-scheduler; ``reservations`` keep them."""

    def __init__(
        self,
        engine: PlacementEngine,
        api: PreemptionApi,
        sources: EvictionSources,
        clock: BinderClock,
        notify: Callable[[PodEvent], None],
    ) -> None:
        self._engine, self._ledger = engine, engine.ledger
        self._sources, self._clock = sources, clock
        self._queue = PreemptionQueue()
        self.reservations = PreemptionReservations(engine, api, sources, clock, notify, self._queue)

    # -- what kube-scheduler asks

    def refused(self, pod: Pod, names: Iterable[str]) -> None:
        """Note that a pod was refused on nodes that lack nothing but free GPUs."""
        if self._may_preempt(pod):
            self._queue.refused(pod, names, self._clock.monotonic())

    def left_to_scheduler(self, pod: Pod, names: Iterable[str]) -> None:
        """Note that kube-scheduler was given the victims of a pod, and will evict those on one of these nodes."""
        if self._may_preempt(pod):
            self._queue.refused(pod, names, self._clock.monotonic(), by_scheduler=True)

    def has_reservation(self, pod: Pod) -> bool:
        """Return whether GPUs are kept for the pod, so that nobody else has to leave."""
        booking = self._ledger.booking(pod.metadata.uid)
        return booking is not None and booking.preemption

    def budget_violations(self, before: Sequence[str], uids: Sequence[str]) -> int:
        """Return how many of ``uids`` violate a PodDisruptionBudget once the pods in ``before`` are evicted."""
        return self._sources.budgets.violations(before, uids)

    def _may_preempt(self, pod: Pod) -> bool:
        configuration = self._ledger.configuration
        return (
            configuration.preemption.enabled
            and pod.spec.preemption_policy != "Never"
            and not (configuration.admission.gangs and gang_of(pod) is not None)
        )

    # -- rounds

    async def run(self, active: Callable[[], bool]) -> NoReturn:
        while True:
            begun = self._clock.monotonic()
            if active():
                await self.round(active)
            # Searches that take long leave the loop to others for as long again.
            await asyncio.sleep(max(PERIOD_S, self._clock.monotonic() - begun))

    async def round(self, active: Callable[[], bool] = lambda: True) -> None:
        """Go on with the places that are kept, and look for places for the pods that wait."""
        await self.reservations.go_on(active)
        begun, hopeless = self._clock.monotonic(), set[_Search]()
        lowest = min((booking.priority for booking in self._ledger.bookings()), default=0)
        while (waiting := self._queue.take(begun)) is not None:
            if (waiting.by_scheduler or (waiting.pod.spec.priority or 0) > lowest) and active():
                await self._begin(waiting, hopeless)
            if self._clock.monotonic() - begun >= ROUND_S:
                break

    async def _begin(self, waiting: RefusedPod, hopeless: set[_Search]) -> None:
        """Find and keep a place for a pod, or leave it to a later round.

        ``hopeless`` are the searches of the round that found nothing: others like them are not made.
        """
        uid, pod = waiting.pod.metadata.uid, await self.reservations.read(waiting.pod)
        request = self.reservations.request(pod) if pod is not None else None
        if pod is None or request is None or self._ledger.booking(uid) is not None:
            return
        nominated, now = _nominated(pod), self._clock.monotonic()
        if now - waiting.nominated_since >= NOMINATION_S or kept_off(self._ledger, pod, nominated) is not None:
            nominated = ""
        elif waiting.by_scheduler and not nominated:
            self._queue.later(waiting, now + PERIOD_S)
            return
        if nominated:
            place = self._left(pod, request, nominated)
        elif (search := _search(pod, request, waiting.names)) in hopeless:
            place = None
        else:
            place = await self._place(pod, request, waiting.names)
            if place is None:
                hopeless.add(search)
        if place is None:
            self._queue.rest(uid, now + (PERIOD_S if nominated else REST_S))
            self._queue.later(waiting, now + (PERIOD_S if nominated else AGAIN_S))
        elif place.withdrawn:
            for other in place.withdrawn:
                await self.reservations.give_up(other, f"pod {pod.key} of higher priority takes its place")
            self._queue.later(waiting, now + PERIOD_S)
        elif not await self.reservations.reserve(pod, request, place):
            self._queue.later(waiting, now + RETRY_S)

    async def _place(self, pod: Pod, request: Request, names: Sequence[str]) -> VictimChoice | None:
        """Return the place that costs least, as the ledger is now, on those of the nodes that still take the pod.

        None where no evictions are enough, where none are needed, and where only pods of its priority leave.
        """
        if any(takes_now(self._ledger, pod, name) for name in self._engine.best_first(request, names)):
            return None
        preemptor = self.reservations.preemptor(pod, request)
        open_names = (name for name in names if takes_now(self._ledger, pod, name))
        search, found, compared = VictimSearch(self._engine, preemptor, self.reservations.rules()), None, 0
        for name in open_names:
            choice = search.on_node(name, most_priority=found.loss.priority if found is not None else None)
            await asyncio.sleep(0)
            compared += choice is not None
            if choice is not None and (found is None or choice.loss < found.loss):
                found = choice
            if compared >= MOST_NODES:
                break
        if found is None or not takes_now(self._ledger, pod, found.node):
            return None
        # The ledger may have changed between the steps: what is written next is decided without a pause.
        gpus = frozenset(gpu.uuid for gpu in found.gpus)
        place = choose_victims(self._engine, preemptor, (found.node,), self.reservations.rules(), gpus)
        if place is None or place.evicted or place.withdrawn:
            return place
        # Pods leave by themselves. Where they are of lower priority, their successors are not to take the place.
        return place if self.reservations.leaving_at(place.node, gpus, preemptor.priority) else None

    def _left(self, pod: Pod, request: Request, node: str) -> VictimChoice | None:
        """Return the place on the node that kube-scheduler has nominated, once nobody else need leave it."""
        decision = self._engine.decide(request, node, self._clock.unix_ns())
        if isinstance(decision, Decision):
            gpus = tuple(each.gpu for each in decision.gpus)
            return VictimChoice(node, gpus, (), ()) if decision.allocation is not None else None
        preemptor = self.reservations.preemptor(pod, request)
        rules = self.reservations.rules(soon_s=MOST_GRACE_S)
        place = choose_victims(self._engine, preemptor, (node,), rules)
        # Whom kube-scheduler evicts may not have been told to leave yet.
        return place if place is not None and not place.evicted and not place.withdrawn else None


def _search(pod: Pod, request: Request, names: Iterable[str]) -> _Search:
    """Return by what a search is known: one for another pod with the same finds the same.

    The bytes are what the pod asks of a node beside GPUs: the names are of nodes that took it when it was refused.
    """
    spec = pod.spec
    asked = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
    return request.shape, spec.priority or 0, frozenset(names), asked


def _nominated(pod: Pod) -> str:
    """Return the node that kube-scheduler has nominated; "" for none, and for that of the pod's own reservation."""
    reservation, nominated = reservation_of(pod), pod.status.nominated_node_name
    return "" if reservation is not None and nominated == reservation.node else nominated
