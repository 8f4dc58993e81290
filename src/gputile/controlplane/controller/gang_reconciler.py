"""Carries out the rounds: holds first, then the gates of those that have their places, each write for its pod alone.

A crash in between is no harm. While places of a plan are missing the extender binds none of its pods; whoever plans
next finds the holds in the API server and completes the plan, or gives the places anew.

A plan that the extender may begin is not changed under its hands: of a gang's writes, the first pods of the plans that
they end come before all others, then the first pod of the new plan; each is executed only on the version of the pod
that is known here, and where one is not executed, none of those behind it is sent.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import NoReturn, Protocol, TypeVar

from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner, PodEvent, ReservationPatch, Round
from gputile.controlplane.controller.slices import sliced
from gputile.controlplane.controller.update_queue import UpdateQueue
from gputile.core.devices.reservation import encode_reservation, reservation_of
from gputile.core.placement.steps import Steps
from gputile.kube.errors import KubeError, NotFound
from gputile.kube.reflector import Deleted

Item = TypeVar("Item")
Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

WRITES_AT_ONCE = 16
PAUSE_SECONDS = 0.05  # for changes that come together
LONGEST_PAUSE_SECONDS = 5.0  # holds end and patience does, without any change


class PodWriter(Protocol):
    """The controller's writes on pods. Errors are those of ``gputile.kube.errors``."""

    async def hold(self, pod: Pod, text: str | None) -> Pod:
        """Write the hold annotation of this very version of the pod, or remove it; return the pod as stored.

        Raises:
            Conflict: the pod has changed.
        """

    async def ungate(self, pod: Pod) -> Pod:
        """Remove the gate of the pod's gang; return the pod as stored."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod, None where there is none of this name."""

    def record(self, about: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Say something about a pod."""


class GangReconciler:
    """Runs rounds while this replica is ``active``, after every change of the view."""

    def __init__(
        self,
        view: ClusterState,
        planner: GangPlanner,
        writer: PodWriter,
        active: Callable[[], bool],
        unix_ns: Callable[[], int],
        intake: UpdateQueue | None = None,
    ) -> None:
        self.planned = 0
        self.failures = 0
        self._view = view
        self._planner = planner
        self._writer = writer
        self._active = active
        self._waiting = 0
        self._unix_ns = unix_ns
        self._intake = intake or UpdateQueue()
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)

    @property
    def waiting(self) -> int:
        """How many gangs had pods without a place in the last round; 0 where another replica acts and counts."""
        return self._waiting if self._active() else 0

    def changed(self) -> None:
        """Have another round soon."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Run rounds for ever."""
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

    async def run_round(self) -> Round:
        """Plan, and write what was planned; nothing, where this replica stopped being active meanwhile."""
        async with self._intake.quiet():
            result = await sliced(self._planner.steps(self._unix_ns()), self._active)
            if result is None:
                self._planner.abandon()
                return Round()
        self._waiting, self.planned = result.waiting, self.planned + result.planned
        if result.unfinished:
            self.changed()
        for note in result.notes:
            await sliced(self._say(note))
        await asyncio.gather(_each(self._holds, result.holds), _each(self._ungate, result.gates))
        return result

    async def _holds(self, writes: Sequence[ReservationPatch]) -> None:
        """Write the holds of one gang."""
        stages = groupby(sorted(writes, key=_stage), key=_stage)
        executed = True
        for _, stage in stages:
            if executed:
                executed = all(await _each(self._hold, stage))
            else:
                for write in stage:
                    self._view.not_written(write.pod)

    async def _hold(self, write: ReservationPatch) -> bool:
        """Write a hold, and return whether it is certain that this was executed."""
        text = encode_reservation(write.hold) if write.hold is not None else None
        async with self._slots:
            if not self._active():
                self._view.not_written(write.pod)
                return False
            try:
                self._view.written(await self._writer.hold(write.pod, text))
            except KubeError as error:
                await self._look(write.pod, error)
                return False
            return True

    async def _ungate(self, pod: Pod) -> None:
        async with self._slots:
            if not self._active():
                return
            try:
                self._view.written(await self._writer.ungate(pod))
            except KubeError as error:
                await self._look(pod, error)

    async def _look(self, pod: Pod, error: KubeError) -> None:
        """After a write that failed, or may have: go by what the API server has, or else by what was known before."""
        self.failures += 1
        log.info("a gang's pod was not written", extra={"pod": pod.key, "why": str(error)})
        self.changed()
        if isinstance(error, NotFound):
            # The write was for this pod by name, so nothing has to be read: whoever has the name now is another pod.
            self._view.take_pods(Deleted(pod))
            return
        try:
            found = await self._writer.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError:
            self._view.not_written(pod)
            return
        if found is None or found.metadata.uid != pod.metadata.uid:
            self._view.take_pods(Deleted(pod))
            return
        self._view.written(found)
        self._view.not_written(pod)

    def _say(self, note: PodEvent) -> Steps[None]:
        log.info(note.message, extra={"reason": note.reason, "pods": len(note.pods)})
        for pod in note.pods:
            self._writer.record(pod, note.reason, note.message, warning=note.warning)
            yield


async def _each(work: Callable[[Item], Awaitable[Answer]], items: Iterable[Item]) -> list[Answer]:
    """Do the work for each of ``items``, few at once; return the answers in any order.

    A task for each would be thousands, which take the event loop for long to begin. Others get their turn after each
    item, also where a server answers so fast that no worker has to wait for it.
    """
    answers: list[Answer] = []
    left = iter(items)

    async def some() -> None:
        for item in left:
            answers.append(await work(item))
            await asyncio.sleep(0)

    await asyncio.gather(*(some() for _ in range(WRITES_AT_ONCE)))
    return answers


def _stage(write: ReservationPatch) -> int:
    """Return when a write of a gang is sent."""
    before = reservation_of(write.pod)
    if before is not None and before.first:
        return 0
    return 1 if write.hold is not None and write.hold.first else 2
