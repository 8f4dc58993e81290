"""Carries out the rounds of ``nomination_planner``: writes and clears ``status.nominatedNodeName``.

A crash in between does no harm: a nomination is a hint, and whoever leads next clears what nobody needs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NoReturn, Protocol

from gputile.api.core import Pod
from gputile.controlplane.controller.nominations.nomination_planner import NominationRound, Nominations
from gputile.controlplane.controller.update_queue import UpdateQueue
from gputile.controlplane.event_loop_slices import in_slices
from gputile.controlplane.parallel_requests import for_each
from gputile.kube.errors import ApiError, Conflict, Invalid, KubeError, NotFound
from gputile.kube.timing import Backoff

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.05  # for pods that are created together
LONGEST_PAUSE_SECONDS = 1.0  # nominations end without any change
_BACKOFF = Backoff(first=0.2, longest=30.0)


class NominationWriter(Protocol):
    """The controller's writes of nominations. Errors are those of ``gputile.kube.errors``."""

    async def nominate(self, pod: Pod, node: str) -> Pod:
        """Nominate a node for this very version of the pod, none where ``node`` is ""; return the pod as stored.

        Raises:
            Conflict: the pod has changed.
        """


class Nominator:
    """Runs rounds while this replica is ``active``; what the watches tell waits in ``updates`` while one is planned.

    ``nominated`` and ``cleared`` count the writes that succeeded, ``failures`` those that failed.
    """

    def __init__(
        self,
        nominations: Nominations,
        writer: NominationWriter,
        active: Callable[[], bool],
        unix_ns: Callable[[], int],
        updates: UpdateQueue,
    ) -> None:
        self.nominated = 0
        self.cleared = 0
        self.failures = 0
        self._nominations = nominations
        self._writer = writer
        self._active = active
        self._unix_ns = unix_ns
        self._updates = updates
        self._woken = asyncio.Event()
        self._failed = 0  # rounds in a row with a write that failed
        self._retry_after = 0.0  # seconds that the API server asks to be left alone

    def wake(self) -> None:
        """Run a round soon, if pods wait for one."""
        if self._nominations.has_work:
            self._woken.set()

    async def run(self) -> NoReturn:
        """Run rounds for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_SECONDS):
                    await self._woken.wait()
                    await asyncio.sleep(PAUSE_SECONDS)
            self._woken.clear()
            if not self._active():
                await in_slices(self._nominations.stand_by())
                continue
            result = await self.run_round()
            if self._failed:
                await asyncio.sleep(max(_BACKOFF.delay(self._failed - 1), self._retry_after))
            if result.unfinished:
                self._woken.set()

    async def run_round(self) -> NominationRound:
        """Plan, and write what was planned; nothing, where this replica stopped being active meanwhile."""
        async with self._updates.paused():
            result = await in_slices(self._nominations.steps(self._unix_ns()), self._active)
        if result is None:
            await in_slices(self._nominations.stand_by())
            return NominationRound()
        failures, self._retry_after = self.failures, 0.0
        await for_each(self._clear, result.cleared)
        await for_each(self._nominate, result.nominated)
        self._failed = self._failed + 1 if self.failures > failures else 0
        return result

    async def _nominate(self, nomination: tuple[Pod, str]) -> None:
        pod, node = nomination
        if not self._active():
            self._nominations.again(pod)
            return
        try:
            stored = await self._writer.nominate(pod, node)
        except NotFound:
            self._nominations.gone(pod)
        except Conflict:
            return  # it has changed, or is bound: the hint came too late, as the watch tells
        except KubeError as error:
            self._note(pod, error)
            if error.may_have_been_executed:
                return  # the watch tells
            if isinstance(error, ApiError) and error.refused_for_good:
                self._nominations.refused(pod)
            else:
                self._nominations.again(pod)
        else:
            self.nominated += 1
            self._nominations.written(stored)

    async def _clear(self, pod: Pod) -> None:
        if not self._active():
            return
        try:
            stored = await self._writer.nominate(pod, "")
        except NotFound:
            self._nominations.gone(pod)
        except Conflict:
            self._nominations.not_cleared(pod)  # the watch tells what has changed
        except KubeError as error:
            self._note(pod, error)
            self._nominations.not_cleared(pod)
        else:
            self.cleared += 1
            self._nominations.written(stored)

    def _note(self, pod: Pod, error: KubeError) -> None:
        """Note a failure. The API server refuses with 422 a nomination of a pod that is bound: that is none."""
        if isinstance(error, Invalid):
            return
        self.failures += 1
        self._retry_after = max(self._retry_after, error.retry_after)
        log.info("a nomination was not written", extra={"pod": pod.key, "why": str(error)})
