"""Runs the controller's rounds: wake, snapshot, plan in a worker thread, write, record events.

The event loop owns the cluster state, and processes watch events while a round is planned. The
worker thread uses only a snapshot and the state of the planners, which nothing else uses at that
time. The snapshot is not taken while a list is being applied. A plan for pods that have changed
since the snapshot is not written. Each write is conditional on the pod's version in the snapshot.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangRound
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.controller.node_request_planner import NodeRequestPlanner
from gputile.controlplane.controller.placeholders import NodeRequestRound, Placeholders

PAUSE_SECONDS = 0.05  # so that simultaneous changes share a round
LONGEST_PAUSE_SECONDS = 5.0  # reservations and time limits end without an event
REQUEST_SECONDS = 1.0  # between two plans of node requests, unless ``wake`` requests a plan


@dataclass(frozen=True, slots=True)
class RoundPlans:
    """The results of a round. A field is None if its part was not planned."""

    gangs: GangRound | None = None
    requests: NodeRequestRound | None = None


class Rounds:
    """Runs rounds while this replica is ``active``.

    ``gangs`` and ``requests`` are each a planner and its writer, or None if gangs or node requests
    are disabled. ``compute`` calls a function in a thread.
    """

    def __init__(
        self,
        state: ClusterState,
        gangs: tuple[GangPlanner, GangWriter] | None,
        requests: tuple[NodeRequestPlanner, Placeholders] | None,
        active: Callable[[], bool],
        unix_ns: Callable[[], int],
        compute: Callable[[Callable[[], RoundPlans]], Awaitable[RoundPlans]] = asyncio.to_thread,
    ) -> None:
        self._state, self._active, self._unix_ns = state, active, unix_ns
        self._gangs, self._requests = gangs, requests
        self._compute = compute
        self._woken = asyncio.Event()
        self._requests_woken = True
        self._requested_at = 0.0

    def wake(self, *, for_requests: bool = False) -> None:
        """Run a round soon.

        With ``for_requests``, the round also plans node requests. This is necessary after a node
        has joined or got a pod, because the placeholder that requested the node must be deleted
        before an autoscaler adds another node for the placeholder.
        """
        self._requests_woken = self._requests_woken or for_requests
        self._woken.set()

    async def run(self) -> NoReturn:
        pause = LONGEST_PAUSE_SECONDS if self._requests is None else REQUEST_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._woken.clear()
            if self._active():
                started = time.monotonic()
                await self.run_round()
                # Other tasks get the CPU for as long as the round took.
                await asyncio.sleep(min(time.monotonic() - started, LONGEST_PAUSE_SECONDS))

    async def run_round(self) -> RoundPlans:
        """Plan a round and write its results. Write nothing if this replica is no longer active."""
        async with self._state.listing:
            self._state.set_time(self._unix_ns())
            snapshot = self._state.snapshot()
        due = self._requests_woken or time.monotonic() - self._requested_at >= REQUEST_SECONDS
        if due:
            self._requests_woken, self._requested_at = False, time.monotonic()
        plans = await self._compute(lambda: self._plan(snapshot, due=due))
        if not self._active():
            if self._gangs is not None:
                self._gangs[0].abandon()
            return RoundPlans()
        gangs = plans.gangs or GangRound()
        requested = self._write_requests(plans.requests, starts=bool(gangs.gates))
        if self._gangs is not None:
            await self._gangs[1].write(gangs, requested)
        else:
            await requested
        return plans

    def _plan(self, snapshot: ClusterState, *, due: bool) -> RoundPlans:
        """Plan gangs, then node requests.

        Node requests are planned if they are ``due``. They are also planned if a gang starts,
        because placeholders may occupy the gang's nodes.
        """
        gangs = self._gangs[0].plan(snapshot) if self._gangs is not None else None
        starts = gangs is not None and bool(gangs.gates)
        if self._requests is None or not (due or starts):
            return RoundPlans(gangs)
        return RoundPlans(gangs, self._requests[0].plan(snapshot))

    async def _write_requests(self, requests: NodeRequestRound | None, *, starts: bool) -> None:
        """Write node requests. If gangs start, wait until deleted placeholders are gone."""
        if self._requests is None:
            return
        if requests is not None:
            await self._requests[1].write(requests)
        if starts:
            await self._requests[1].wait_until_gone()
