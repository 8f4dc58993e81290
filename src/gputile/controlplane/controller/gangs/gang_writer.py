"""Writes what a round of gang planning decides.

The reservations come first, then the gates of reserved pods, with one write for each pod.

A crash in between does no harm. While reservations of a plan are missing the extender binds none of its pods; whoever
plans next finds the others in the API server and completes the plan, or makes a new one.

A plan that the extender may start is not changed meanwhile: of a gang's writes, the first pods of the plans that
they end come before all others, then the first pod of the new plan; each is executed only on the version of the pod
that is known here, and where one is not executed, none of those behind it is sent.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import NoReturn, Protocol

from gputile.api.core import ObjectMeta, Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Eviction
from gputile.controlplane.controller.gangs.gang_planner import GangPlanner
from gputile.controlplane.controller.gangs.gang_round import GangEvent, GangRound, ReservationPatch
from gputile.controlplane.controller.queues import UpdateQueue
from gputile.controlplane.event_loop import AT_ONCE, for_each, in_slices
from gputile.core.devices.reservation import encode_reservation, reservation_of
from gputile.core.placement.steps import Steps, at_once
from gputile.kube.errors import ApiError, Conflict, KubeError, NotFound
from gputile.kube.objects import Deleted

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.05  # for changes that come together
LONGEST_PAUSE_SECONDS = 5.0  # reservations and timeouts end without any change


class PodWriter(Protocol):
    """The controller's writes on pods. Errors are those of ``gputile.kube.errors``."""

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        """Write the reservation of this very version of the pod, or remove it; return the pod as stored.

        ``nominated`` is its nominated node, "" for none; None leaves that as it is.

        Raises:
            Conflict: the pod has changed.
        """

    async def ungate(self, pod: Pod) -> Pod:
        """Remove the gate of the pod's gang; return the pod as stored."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod, None where there is none of this name."""

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        """Ask for the eviction of the pod with this UID, and write into its status that it is preempted."""

    def record(self, about: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Say something about a pod."""


class GangWriter:
    """Runs rounds while this replica is ``active``, after every change of the cluster state.

    What the watches tell comes by ``updates``, and waits there while a round is planned. ``make_way`` is called and
    waited for before pods may be bound to their places.
    """

    def __init__(
        self,
        cluster_state: ClusterState,
        planner: GangPlanner,
        writer: PodWriter,
        active: Callable[[], bool],
        unix_ns: Callable[[], int],
        updates: UpdateQueue,
    ) -> None:
        self.planned = 0
        self.failures = 0
        self.make_way: Callable[[], Awaitable[None]] = _nothing
        self._cluster_state = cluster_state
        self._planner = planner
        self._writer = writer
        self._active = active
        self._waiting = 0
        self._contradictions: list[str] = []
        self._unix_ns = unix_ns
        self._updates = updates
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)

    @property
    def waiting(self) -> int:
        """How many gangs had pods without a reservation in the last round; 0 where another replica acts and counts."""
        return self._waiting if self._active() else 0

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> NoReturn:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_SECONDS):
                    await self._changed.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._changed.clear()
            if self._active():
                started = time.monotonic()
                await self.run_round()
                # Rounds that take long leave the loop to others for as long again.
                await asyncio.sleep(min(time.monotonic() - started, LONGEST_PAUSE_SECONDS))

    def states(self) -> Counter[EventReason]:
        """Return how many gangs there are by state, see ``GangPlanner.states``; none while this replica is inactive."""
        return self._planner.states() if self._active() else Counter()

    def waiting_since(self) -> float:
        """Return since when a gang has had no GPUs, see ``GangPlanner.waiting_since``; 0 while this one is inactive."""
        return self._planner.waiting_since() if self._active() else 0.0

    async def run_round(self) -> GangRound:
        """Plan, and write what was planned; nothing, where this replica stopped being active meanwhile."""
        async with self._updates.paused():
            result = await in_slices(self._planner.steps(self._unix_ns()), self._active)
            if result is None:
                await in_slices(self._planner.abandon())
                return GangRound()
        self._waiting, self.planned = result.waiting, self.planned + result.planned
        if result.unfinished or any(event.reason is EventReason.GANG_PREEMPTING for event in result.events):
            self.changed()
        if result.contradictions and result.contradictions != self._contradictions:
            log.error("gangs are left to the next round: %s", "; ".join(result.contradictions))
        self._contradictions = result.contradictions
        for event in result.events:
            await in_slices(self._record(event))
        await asyncio.gather(
            for_each(self._write_gang, result.reservations),
            self._ungate_all(result.gates),
            for_each(self._evict_all, result.evictions),
        )
        return result

    async def _evict_all(self, evictions: Sequence[Eviction]) -> None:
        memory = self._planner.evictions
        for each in evictions:
            if not self._active():
                return
            victim = Pod(metadata=ObjectMeta(namespace=each.namespace, name=each.name, uid=each.uid))
            try:
                async with self._slots:
                    await self._writer.evict(each.namespace, each.name, each.uid, each.why)
            except (NotFound, Conflict):
                memory.was_gone(each)
                continue
            except KubeError as error:
                why = f"the eviction of pod {each.namespace}/{each.name} was refused: {error}"
                memory.was_refused(each, why, error)
                for pod in each.told or [victim]:
                    self._writer.record(pod, EventReason.PREEMPTION_REFUSED, why, warning=True)
                return
            memory.was_evicted(each)
            self._writer.record(victim, EventReason.PREEMPTED, each.why, warning=False)

    async def _write_gang(self, writes: Sequence[ReservationPatch]) -> None:
        stages = groupby(sorted(writes, key=_stage), key=_stage)
        executed = True
        for _, stage in stages:
            if executed:
                executed = all(await for_each(self._write_reservation, stage))
            else:
                await in_slices(self._not_written(stage))

    def _not_written(self, writes: Iterable[ReservationPatch]) -> Steps[None]:
        """Take back, in steps, what was expected of writes that are not sent."""
        for write in writes:
            self._cluster_state.not_written(write.pod)
            yield

    async def _write_reservation(self, write: ReservationPatch) -> bool:
        """Write a reservation, and return whether it is certain that this was executed."""
        text = encode_reservation(write.reservation) if write.reservation is not None else None
        async with self._slots:
            if not self._active():
                self._cluster_state.not_written(write.pod)
                return False
            try:
                self._cluster_state.written(await self._writer.reserve(write.pod, text, write.nominated))
            except KubeError as error:
                if isinstance(error, ApiError) and error.refused_for_good:
                    self._planner.refused(write.pod, str(error))
                await self._read_back(write.pod, error)
                return False
            return True

    async def _ungate_all(self, pods: Sequence[Pod]) -> None:
        if pods:
            await self.make_way()
        await for_each(self._ungate, pods)

    async def _ungate(self, pod: Pod) -> None:
        async with self._slots:
            if not self._active():
                return
            try:
                self._cluster_state.written(await self._writer.ungate(pod))
            except KubeError as error:
                await self._read_back(pod, error)

    async def _read_back(self, pod: Pod, error: KubeError) -> None:
        """Read a pod back whose write failed, or may have; where it cannot be read, what was known before holds."""
        self.failures += 1
        log.info("a gang's pod was not written", extra={"pod": pod.key, "why": str(error)})
        self.changed()
        if isinstance(error, NotFound):
            # The write was for this pod by name, so nothing has to be read: whoever has the name now is another pod.
            at_once(self._cluster_state.pod_event(Deleted(pod)))
            return
        try:
            found = await self._writer.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError:
            self._cluster_state.not_written(pod)
            return
        if found is None or found.metadata.uid != pod.metadata.uid:
            at_once(self._cluster_state.pod_event(Deleted(pod)))
            return
        self._cluster_state.written(found)
        self._cluster_state.not_written(pod)

    def _record(self, event: GangEvent) -> Steps[None]:
        log.info(event.message, extra={"reason": event.reason, "pods": len(event.pods)})
        for pod in event.pods:
            self._writer.record(pod, event.reason, event.message, warning=event.warning)
            yield


async def _nothing() -> None:
    """Do nothing: nothing is in the way of pods."""


def _stage(write: ReservationPatch) -> int:
    """Return when a write of a gang is sent."""
    before = reservation_of(write.pod)
    if before is not None and before.first:
        return 0
    return 1 if write.reservation is not None and write.reservation.first else 2
