"""Keeps reservations for pods that preempt others, until the pods are bound or give up.

First GPUs are reserved: one write to the pod gives it a reservation, which the ledger counts as a booking, and
``nominatedNodeName``. Then pods are evicted until the reservation is free. Nobody else gets these GPUs
meanwhile, and the pod is bound when they are free. The API server has all that must survive: the next leader finds the
reservation, and evicts the pods that still have to leave.

A reservation is given up if its first eviction is refused (``evictions``), if its GPUs are lost for other reasons, and
when its time has ended.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil

import msgspec

from gputile.api.core import ObjectMeta, Pod
from gputile.api.reasons import EventReason
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane.extender.binder import BinderClock
from gputile.controlplane.extender.evictions import EvictionAnswer, Evictions, EvictionSources
from gputile.controlplane.extender.pod_api import PodEvent, PreemptionApi
from gputile.controlplane.extender.preemption_queue import REST_S, PreemptionQueue
from gputile.core.devices.request import Request, RequestError
from gputile.core.devices.reservation import Reservation, encode_reservation, reservation_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import PodApplied
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S, SOON_S, EvictionFacts, EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import kept_off, takes_now
from gputile.core.scheduling.reserved_place import lost_reservation
from gputile.core.scheduling.victim_choice import Preemptor, VictimChoice, choose_victims
from gputile.kube.errors import KubeError

log = logging.getLogger(__name__)

RETRY_S = 5.0  # after an eviction that was refused, or a place that could not be written
_NAMED = 5  # pods in a message
_SECOND = 10**9
_PASSING = frozenset({ReservationRule.GPU_TAKEN, ReservationRule.NODE_CLOSED})
_TIME_IS_OVER = "its time is over"


@dataclass(slots=True)
class _Preempting:
    """A pod with a reservation of this plan. ``evicted`` tells whether a pod has been evicted for it.

    ``unsure`` is the UID of the pod about whose eviction no answer came, "" for none.
    """

    pod: Pod
    plan: str
    evicted: bool = False
    retry_at: float = 0.0
    unsure: str = ""


class PreemptionReservations:
    """Reserves GPUs and has pods leave them, one after the other. ``queue`` are the pods that wait for one."""

    def __init__(
        self,
        engine: PlacementEngine,
        api: PreemptionApi,
        sources: EvictionSources,
        clock: BinderClock,
        notify: Callable[[PodEvent], None],
        queue: PreemptionQueue,
    ) -> None:
        self.reserved = 0
        self.evictions = Evictions(engine.ledger, api, sources, clock, notify)
        self._engine, self._ledger = engine, engine.ledger
        self._api, self._sources, self._queue = api, sources, queue
        self._clock, self._notify = clock, notify
        self._preempting: dict[str, _Preempting] = {}  # by the UID of the pod that preempts
        self._latest: dict[str, float] = {}  # plan -> when its place is given up at the latest, monotonic

    # -- questions

    def rules(self, *, refused_too: bool = False, soon_s: float = SOON_S) -> EvictionRules:
        """Return the rules by which pods may be evicted now; ``refused_too`` also those that were refused lately.

        A pod that leaves within ``soon_s`` counts as gone. After a reservation all that were told to leave do.
        """
        unsure = [each.unsure for each in self._preempting.values() if each.unsure]
        return self.evictions.rules(unsure, refused_too=refused_too, soon_s=soon_s)

    def preemptor(self, pod: Pod, request: Request) -> Preemptor:
        return Preemptor(pod.metadata.uid, request, pod.spec.priority or 0, self._clock.unix_ns() / _SECOND)

    def request(self, pod: Pod) -> Request | None:
        try:
            return self._engine.request(pod)
        except RequestError:
            return None

    async def read(self, known: Pod) -> Pod | None:
        """Return a pod as the API server has it; None where it cannot be read, or needs no place any more."""
        meta = known.metadata
        try:
            pod = await self._api.pod(meta.namespace, meta.name)
        except KubeError as error:
            log.warning("a pod that may preempt others cannot be read", extra={"pod": known.key, "why": str(error)})
            return None
        if pod is None or pod.metadata.uid != meta.uid or pod.spec.node_name or pod.finished:
            return None
        return None if pod.metadata.deletion_timestamp or pod.spec.scheduling_gates else pod

    def leaving_at(self, node: str, uuids: Collection[str], below: int | None = None) -> list[float]:
        """Return when the pods are to be gone that leave GPUs of a node, Unix time in seconds.

        With ``below`` only pods of a priority below it count.
        """
        facts = self._sources.bound_pods.facts
        return [
            known.leaves_at
            for booking in self._ledger.on_node(node)
            if any(share.uuid in uuids for share in booking.gpus)
            and (known := facts.get(booking.uid)) is not None
            and known.leaves_at
            and (below is None or booking.priority < below)
        ]

    # -- a new reservation

    async def reserve(self, pod: Pod, request: Request, place: VictimChoice) -> bool:
        """Write the reservation of a place, and have the pods leave that have to; return whether it was written."""
        row = self._ledger.row_of.get(place.node)
        info = self._ledger.node_info(row) if row is not None else None
        uid, now_ns = pod.metadata.uid, self._clock.unix_ns()
        if info is None or self._ledger.booking(uid) is not None:
            return False
        lasts = self._lasts(self._waits_for(pod, request, place), place.evicted)
        reservation = Reservation(
            plan=f"preemption-{secrets.token_hex(6)}",
            size=1,
            pods=1,
            node=place.node,
            expires_ns=now_ns + lasts * _SECOND,
            allocation=self._engine.decision(request, info, place.gpus, now_ns).allocation,
            first=True,
            preemption=True,
        )
        text = encode_reservation(reservation)
        annotations = pod.metadata.annotations | {RESERVATION_ANNOTATION: text}
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        self._ledger.apply(PodApplied(msgspec.structs.replace(pod, metadata=meta)))
        try:
            stored = await self._api.reserve(pod, text, place.node)
        except KubeError as error:
            log.warning("GPUs are not reserved", extra={"pod": pod.key, "node": place.node, "why": str(error)})
            await self._not_reserved(pod, uncertain=error.may_have_been_executed)
            return False
        self._ledger.apply(PodApplied(stored))
        self.reserved += 1
        preempting = self._preempting[uid] = _Preempting(stored, reservation.plan)
        self._latest[reservation.plan] = self._clock.monotonic() + lasts
        self._queue.rest(uid, self._clock.monotonic() + REST_S)
        log.info("keeps a place", extra={"pod": pod.key, "node": place.node, "evicts": len(place.evicted)})
        gpus = ", ".join(f"GPU {gpu.index}" for gpu in place.gpus)
        leave = f"; {self._named(place.evicted)} must leave" if place.evicted else ""
        self._say(
            stored, EventReason.PREEMPTING, f"node {place.node}: {gpus} kept for the pod for {lasts} s at most{leave}"
        )
        await self._evict(preempting, place.evicted)
        return True

    async def _not_reserved(self, pod: Pod, *, uncertain: bool) -> None:
        """Take back what was expected of a write that failed; where nobody knows, the pod is read."""
        found: Pod | None = pod
        if uncertain:
            try:
                found = await self._api.pod(pod.metadata.namespace, pod.metadata.name)
            except KubeError:
                found = None
            if found is None or found.metadata.uid != pod.metadata.uid:
                return  # the watch tells, and what is expected ends by itself
        if found is not None:
            self._ledger.apply(PodApplied(found))

    def _lasts(self, leaving_s: int, evicted: Sequence[str] = ()) -> int:
        """Return how many seconds a reservation lasts: the configured time, and what pods may take to leave it."""
        facts = self._sources.bound_pods.facts
        graces = [facts[uid].grace_s for uid in evicted if uid in facts]
        return self._ledger.configuration.preemption.keep_seconds + max([leaving_s, *graces])

    def _waits_for(self, pod: Pod, request: Request, place: VictimChoice) -> int:
        """Return in how many seconds those are to be gone that leave a place by themselves, and that it needs to."""
        gpus, preemptor = frozenset(gpu.uuid for gpu in place.gpus), self.preemptor(pod, request)
        gone = {*self.evictions.leaving(), *place.evicted}
        times = self._leaving_s(place.node, gpus)
        for seconds in times:
            rules = replace(self.rules(soon_s=seconds), evicted=gone)
            found = choose_victims(self._engine, preemptor, (place.node,), rules, gpus)
            if found is not None and not found.evicted and not found.withdrawn:
                return seconds
        return times[-1]

    def _leaving_s(self, node: str, uuids: Collection[str]) -> list[int]:
        """Return in how many seconds pods are to be gone that leave GPUs of a node, 0 and the soonest first."""
        now_s = self._clock.unix_ns() / _SECOND
        leaving = (ceil(each - now_s) for each in self.leaving_at(node, uuids) if each - now_s <= MOST_GRACE_S)
        return sorted({0, *(max(0, each) for each in leaving)})

    # -- reservations that were written

    async def go_on(self, active: Callable[[], bool]) -> None:
        """Have the pods leave that still have to, and give up the reservations that are lost or have ended.

        Then the rest of each gang is asked to leave that leaves whole.
        """
        self.evictions.forget()
        reserved = [each for each in self._ledger.bookings() if each.reserved and each.preemption]
        self._latest = {each.plan: self._latest_end(each) for each in reserved}
        for booking in reserved:
            if active():
                await self._go_on(booking)
        for uid in [uid for uid in self._preempting if not self._is_reserved(uid)]:
            await self._ended(self._preempting.pop(uid))
        for staying in self.evictions.due():
            if active():
                await self.evictions.ask_staying(staying)

    def _latest_end(self, booking: Booking) -> float:
        """Return when a place is given up at the latest: a reservation ends too late where a clock was wrong."""
        known = self._latest.get(booking.plan)
        if known is not None:
            return known
        leaving_s = self._leaving_s(booking.node, {share.uuid for share in booking.gpus})
        return self._clock.monotonic() + self._lasts(leaving_s[-1])

    def _is_reserved(self, uid: str) -> bool:
        booking = self._ledger.booking(uid)
        return booking is not None and booking.reserved and booking.preemption

    async def _go_on(self, booking: Booking) -> None:
        """Have the pods leave that still have to, or give the place up."""
        if self._clock.monotonic() > self._latest[booking.plan]:
            await self.give_up(booking.uid, _TIME_IS_OVER)
            return
        lost = lost_reservation(self._ledger, booking)
        if lost is not None and lost.rule not in _PASSING:
            await self.give_up(booking.uid, lost.text)
            return
        preempting = self._preempting.get(booking.uid)
        if preempting is None or preempting.plan != booking.plan:
            preempting = await self._taken_over(booking)
        if preempting is None:
            return
        why = kept_off(self._ledger, preempting.pod, booking.node)
        if why is not None:
            await self.give_up(booking.uid, f"node {booking.node} takes the pod no longer: {why.text}")
        elif lost is not None and lost.rule is ReservationRule.GPU_TAKEN:
            await self._have_others_leave(booking, preempting)

    async def _have_others_leave(self, booking: Booking, preempting: _Preempting) -> None:
        """Have the pods leave that still have to, or give the place up where they may not be made to."""
        if self._clock.monotonic() < preempting.retry_at or not takes_now(self._ledger, preempting.pod, booking.node):
            return
        if not await self._is_settled(preempting):
            preempting.retry_at = self._clock.monotonic() + RETRY_S
            return
        gpus = frozenset(share.uuid for share in booking.gpus)
        request, leaving = self.request(preempting.pod), self.leaving_at(booking.node, gpus)
        if request is None:
            return
        preemptor = self.preemptor(preempting.pod, request)
        rules = self.rules(soon_s=MOST_GRACE_S)
        place = choose_victims(self._engine, preemptor, (booking.node,), rules, gpus)
        if place is None and preempting.evicted:  # who was refused is needed
            rules = self.rules(refused_too=True, soon_s=MOST_GRACE_S)
            place = choose_victims(self._engine, preemptor, (booking.node,), rules, gpus)
        if place is None:
            if not leaving and not preempting.evicted:
                await self.give_up(booking.uid, "the pods that have to leave may not be evicted any more")
            return
        for other in place.withdrawn:
            await self.give_up(other, f"pod {preempting.pod.key} of higher priority takes its place")
        await self._evict(preempting, place.evicted)

    async def _is_settled(self, preempting: _Preempting) -> bool:
        """Return whether it is known what came of an eviction that was not answered: else others leave beside it."""
        uid, facts = preempting.unsure, self._sources.bound_pods.facts.get(preempting.unsure)
        if facts is not None and not facts.leaves_at:
            try:
                found = await self._api.pod(facts.namespace, facts.name)
            except KubeError:
                return False
            if found is None or found.metadata.uid != uid or found.metadata.deletion_timestamp:
                self.evictions.told_to_leave(uid)
        preempting.unsure = ""
        return True

    async def _taken_over(self, booking: Booking) -> _Preempting | None:
        """Return what is known of a reservation of an earlier leader, None where its pod cannot be read."""
        meta = ObjectMeta(namespace=booking.namespace, name=booking.name, uid=booking.uid)
        pod = await self.read(Pod(metadata=meta))
        if pod is None:
            return None
        leaving = self.leaving_at(booking.node, {share.uuid for share in booking.gpus})
        preempting = self._preempting[booking.uid] = _Preempting(pod, booking.plan, evicted=bool(leaving))
        return preempting

    async def _evict(self, preempting: _Preempting, uids: Sequence[str]) -> None:
        """Ask for the evictions, until one is refused; without any before it the place is given up."""
        preemptor = preempting.pod.metadata.uid
        kept = self._ledger.booking(preemptor)
        if kept is None:
            return
        said = f"preempted by pod {preempting.pod.key} on node {kept.node}"
        for uid in self.evictions.begin_all(uids, self.rules(), preemptor, said):
            facts, booking = self._sources.bound_pods.facts.get(uid), self._ledger.booking(preemptor)
            if booking is None or not booking.reserved or booking.plan != preempting.plan:
                return
            if facts is None:
                continue
            asked = await self.evictions.ask(uid, facts, said)
            if asked is EvictionAnswer.NOT_SENT:
                return
            if isinstance(asked, KubeError):
                await self._eviction_failed(preempting, uid, facts, asked)
                return
            preempting.evicted |= asked is EvictionAnswer.ACCEPTED

    async def _eviction_failed(self, preempting: _Preempting, uid: str, facts: EvictionFacts, error: KubeError) -> None:
        """Try again later; the place is given up where nobody has been evicted for it."""
        preempting.evicted |= error.may_have_been_executed
        preempting.unsure = uid if error.may_have_been_executed else ""
        preempting.retry_at = self._clock.monotonic() + RETRY_S
        why = f"the eviction of pod {facts.namespace}/{facts.name} was refused: {error}"
        self._say(preempting.pod, EventReason.PREEMPTION_REFUSED, why, warning=True)
        if not preempting.evicted:
            await self.give_up(preempting.pod.metadata.uid, why)

    async def _ended(self, preempting: _Preempting) -> None:
        """Tell of a reservation that has ended, unless its pod is bound to it now."""
        if self._ledger.booking(preempting.pod.metadata.uid) is not None:
            return
        pod = await self.read(preempting.pod)
        reservation = reservation_of(pod) if pod is not None else None
        if pod is not None and reservation is not None and reservation.expires_ns > self._clock.unix_ns():
            self._ledger.apply(PodApplied(pod))  # the watch was behind
        elif pod is not None:
            await self._withdraw(pod, _TIME_IS_OVER)

    async def give_up(self, uid: str, why: str) -> None:
        booking = self._ledger.booking(uid)
        if booking is None or not booking.reserved:
            return
        meta = ObjectMeta(namespace=booking.namespace, name=booking.name, uid=uid)
        self._preempting.pop(uid, None)
        pod = await self.read(Pod(metadata=meta))
        if pod is not None:
            await self._withdraw(pod, why)

    async def _withdraw(self, pod: Pod, why: str) -> None:
        """Remove the reservation of a pod that waits, and its nomination; where that fails it ends by itself."""
        self._queue.rest(pod.metadata.uid, self._clock.monotonic() + REST_S)
        if RESERVATION_ANNOTATION not in pod.metadata.annotations:
            return
        try:
            self._ledger.apply(PodApplied(await self._api.reserve(pod, None, "")))
        except KubeError as error:
            log.warning("a reservation is not given up yet", extra={"pod": pod.key, "why": str(error)})
            return
        self._say(pod, EventReason.PREEMPTION_ENDED, f"no place is kept for the pod any more: {why}", warning=True)

    # -- what is said

    def _named(self, uids: Sequence[str]) -> str:
        facts = self._sources.bound_pods.facts
        names = [f"{facts[uid].namespace}/{facts[uid].name}" for uid in uids[:_NAMED] if uid in facts]
        more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
        return f"{', '.join(names)}{more}"

    def _say(self, pod: Pod, reason: EventReason, message: str, *, warning: bool = False) -> None:
        self._notify(PodEvent(pod, warning, reason, message, latest=True))
