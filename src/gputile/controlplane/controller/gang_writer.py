"""Writes the result of a round: reservations, the removal of scheduling gates, and evictions.

Gates are removed and pods are evicted only for reservations that an earlier round has stored. So a
crash between two writes does no harm. While reservations of a plan are missing, the extender binds
none of the plan's pods. The next leader finds the stored reservations in the API server. It
completes the plan or makes a new one.

The extender must not start a plan while the plan is being changed. So the writes of a gang have an
order: the first pods of old plans, then the first pod of the new plan, then all other pods. Each
write is conditional on the known version of its pod. If a write fails, the later writes of the gang
are not sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

from gputile.api.core import ObjectMeta, Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Eviction
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangRound, ReservationPatch
from gputile.controlplane.event_loop import AT_ONCE, for_each, yielding_to_loop
from gputile.core.devices.allocation import encode_reservation, reservation_of
from gputile.kube.errors import ApiError, Conflict, KubeError, NotFound

log = logging.getLogger(__name__)


class GangWriter:
    """Writes while this replica is ``active``. Calls ``changed`` if a round should follow soon."""

    def __init__(
        self,
        cluster_state: ClusterState,
        planner: GangPlanner,
        writer: ApiServerWriter,
        active: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.failures = 0
        self._cluster_state = cluster_state
        self._planner = planner
        self._writer = writer
        self._active = active
        self._changed = changed
        self._contradictions: list[str] = []
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def write(self, result: GangRound, before_gates: Awaitable[None] | None = None) -> None:
        """Write the result of a round. Gates are removed after ``before_gates`` has ended."""
        if result.unfinished or any(
            event.reason is EventReason.GANG_PREEMPTING for event in result.events
        ):
            self._changed()
        if result.contradictions and result.contradictions != self._contradictions:
            log.error("gangs are left to the next round: %s", "; ".join(result.contradictions))
        self._contradictions = result.contradictions
        current = [patches for patches in result.reservations if await self._expect(patches)]
        for event in result.events:
            log.info(event.message, extra={"reason": event.reason, "pods": len(event.pods)})
            async for pod in yielding_to_loop(event.pods):
                self._writer.record(pod, event.reason, event.message, warning=event.warning)
        await asyncio.gather(
            for_each(self._write_gang, current),
            self._ungate_all(result.gates, before_gates),
            for_each(self._evict_all, result.evictions),
        )

    async def _expect(self, patches: Sequence[ReservationPatch]) -> bool:
        """Apply a gang's writes to the state. If a pod has changed meanwhile, return False."""
        if any(self._cluster_state.has_changed(patch.pod) for patch in patches):
            self._changed()
            return False
        async for patch in yielding_to_loop(patches):
            if not self._cluster_state.has_changed(patch.pod):
                self._cluster_state.assume_write(patch.pod, patch.reservation)
        return True

    async def _evict_all(self, evictions: Sequence[Eviction]) -> None:
        memory = self._planner.evictions
        for each in evictions:
            if not self._active():
                return
            victim = Pod(
                metadata=ObjectMeta(namespace=each.namespace, name=each.name, uid=each.uid)
            )
            try:
                async with self._slots:
                    await self._writer.evict(each.namespace, each.name, each.uid, each.why)
            except (NotFound, Conflict):
                memory.record_gone(each)
                continue
            except KubeError as error:
                why = f"the eviction of pod {each.namespace}/{each.name} was refused: {error}"
                memory.record_refusal(each, why, error)
                self._changed()  # other victims may be chosen, or the reservations given up
                for pod in each.about or [victim]:
                    self._writer.record(pod, EventReason.PREEMPTION_REFUSED, why, warning=True)
                return
            memory.record_accepted(each)
            self._writer.record(victim, EventReason.PREEMPTED, each.why, warning=False)

    async def _write_gang(self, writes: Sequence[ReservationPatch]) -> None:
        executed = True
        for _, stage in groupby(sorted(writes, key=_stage), key=_stage):
            if executed:
                executed = all(await for_each(self._write_reservation, stage))
                continue
            async for write in yielding_to_loop(stage):
                self._cluster_state.revert_write(write.pod)

    async def _write_reservation(self, write: ReservationPatch) -> bool:
        """Write a reservation, and return whether the API server confirmed the write."""
        text = encode_reservation(write.reservation) if write.reservation is not None else None
        async with self._slots:
            if not self._active():
                self._cluster_state.revert_write(write.pod)
                return False
            try:
                self._cluster_state.confirm_write(
                    await self._writer.reserve(write.pod, text, write.nominated)
                )
            except KubeError as error:
                if isinstance(error, ApiError) and error.refused_for_good:
                    self._planner.record_refusal(write.pod, str(error))
                self._failed(write.pod, error)
                return False
            return True

    async def _ungate_all(self, pods: Sequence[Pod], before: Awaitable[None] | None) -> None:
        if before is not None:
            await before
        await for_each(self._ungate, pods)

    async def _ungate(self, pod: Pod) -> None:
        async with self._slots:
            if not self._active():
                return
            try:
                self._cluster_state.confirm_write(await self._writer.ungate(pod))
            except KubeError as error:
                self._failed(pod, error)

    def _failed(self, pod: Pod, error: KubeError) -> None:
        """Undo a failed write in the state. If the write was executed, the watch will show it."""
        self.failures += 1
        log.info("a write to a gang's pod failed", extra={"pod": pod.key, "why": str(error)})
        if isinstance(error, NotFound):
            self._cluster_state.pod_gone(pod)
            return
        self._cluster_state.revert_write(pod)
        if not isinstance(error, Conflict):  # after a conflict, the watch starts the next round
            self._changed()


def _stage(write: ReservationPatch) -> int:
    """Return a write's position in the order that the module's docstring defines for a gang."""
    before = reservation_of(write.pod)
    if before is not None and before.first:
        return 0
    return 1 if write.reservation is not None and write.reservation.first else 2
