"""Answers the kubelet: looks up what a decision needs, lets ``allocation`` decide, writes it down.

A call holds up every pod of the node and has no deadline in the kubelet, so each request has one here. The agent waits
for the kubelet's list for up to three seconds, since it takes a while on a busy node, and for half a second if it did
not come the last time. The agent waits longer for the API server, but only for a pod of which nothing else is known:
the kubelet keeps for good what such a pod is given.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation import allocate, preferred, told_to_mount
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.callers import callers, unclear
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.cluster.informer import Wakeup
from gputile.node.agent.container_start import ContainerPreparation, NotYet, Start, prestart
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.files.isolation_mounts import NotIsolated
from gputile.node.agent.files.kubelet_checkpoint import mounts_of
from gputile.node.agent.files.records import Records
from gputile.node.agent.holdings import derive, forget_unwritten
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.kubelet import AgentNotReady, KubeletLink
from gputile.node.agent.rules import AllocationConflict
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MOST_LOOKUPS = 8


class Lookup:
    """Brings the state up to date before a call is decided."""

    def __init__(
        self, state: AllocationState, kubelet: KubeletLink, records: Records, cluster: NodeApi, node: str
    ) -> None:
        self.records = records
        self._state = state
        self._kubelet = kubelet
        self._cluster = cluster
        self._node = node
        self._answers = True

    async def list(self) -> Listing | None:
        """Return what the kubelet lists, None where it does not within a while; the state is brought up to date."""
        listing = await self._kubelet.list(NEEDED_WITHIN_S if self._answers else FETCH_WITHIN_S)
        self._answers = listing is not None
        self._state.heard(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        self.read_written()
        return listing

    def read_written(self) -> None:
        """Read what the kubelet has written down; a record that cannot be written for it is written later."""
        try:
            self.records.read(self._state, time.time_ns())
        except OSError as error:
            log.error("the agent's state cannot be written, and is written again later: %s", error)

    async def caller(self, resource: str, size: int) -> Caller | None:
        """Return who asks, after reading those pods from the API server that may be the one; None if nobody knows."""
        listing = await self.list()
        forget_unwritten(self._state, resource)
        until = time.monotonic() + PATIENCE_S
        while keys := unclear(self._state, listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read(key) for key in keys))
            known = all(key in self._state.pods for key in keys)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        derive(self._state, time.time_ns())
        return next(iter(callers(self._state, listing, resource, size)), None)

    async def _read(self, key: str) -> bool:
        """Read a pod from the API server; return whether it answered, be it that there is none."""
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                pod = await self._cluster.pod(namespace, name, READ_WITHIN_S)
        except (KubeError, TimeoutError) as error:
            log.warning("cannot read pod %s: %s", key, error)
            return False
        if pod is not None and pod.spec.node_name == self._node:
            answered_pod(self._state.pods, pod, self._state.configuration)
        return True


class AllocationHandler:
    """Answers the calls on all device plugins of one node. ``compare`` wakes the loop that compares."""

    def __init__(
        self,
        state: AllocationState,
        lookup: Lookup,
        files: ContainerPreparation,
        advertiser: Advertiser,
        compare: Wakeup,
        metrics: AgentMetrics,
    ) -> None:
        self._state = state
        self._lookup = lookup
        self._files = files
        self._advertiser = advertiser
        self._compare = compare
        self._metrics = metrics

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        with self._metrics.seconds.labels("GetPreferredAllocation").time():
            caller = await self._lookup.caller(resource, size)
            ids = preferred(self._state, caller, resource, available, must, size)
            self._state.expect(resource, ids, caller, time.monotonic())
            return ids

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what a container gets.

        Raises:
            AllocationConflict: the IDs cannot be served.
        """
        with self._metrics.seconds.labels("Allocate").time():
            state, expected, now_ns = self._state, self._state.admission.expected, time.time_ns()
            if expected is not None and expected.is_for(resource, ids, time.monotonic()):
                caller = expected.caller
            else:
                caller = await self._lookup.caller(resource, len(ids))
            try:
                answer = allocate(state, caller, resource, ids, now_ns)
            except AllocationConflict as error:
                self._metrics.contradictions.inc()
                log.error("refused %d of %s: %s", len(ids), resource, error)
                raise
            if caller is None:
                self._metrics.unidentified.inc()
                log.warning("gave %d of %s to a pod that nobody knows yet", len(ids), resource)
            response = self._files.response(state.node_config.mode, answer)
            told_to_mount(state, answer.directory, mounts_of(response.mounts))
            try:
                self._files.prepare(answer, state.records[answer.directory])
            except OSError as error:  # made good before the container starts
                log.error("the agent's state cannot be written, and is written again later: %s", error)
            self._advertiser.allocated()
            self._compare.wish()
            return response

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start.

        Raises:
            AgentNotReady: it must not start yet.
        """
        with self._metrics.seconds.labels("PreStartContainer").time():
            try:
                for start in await self._starting(resource, ids):
                    await self._files.start(start, self._state)
            except NotYet as error:
                self._compare.wish()
                self._advertiser.allocated()
                raise AgentNotReady(str(error)) from error
            except NotIsolated as error:
                pod = f"{start.limits.namespace}/{start.limits.pod}"
                raise AgentNotReady(
                    f"container {start.limits.container} of pod {pod} does not start: {error}"
                ) from error
            except (OSError, ValueError) as error:
                raise AgentNotReady(f"the limits cannot be written: {error}") from error

    async def _starting(self, resource: str, ids: tuple[str, ...]) -> list[Start]:
        """Return the containers that start; what the kubelet lists may be news if none may by what is known.

        Raises:
            NotYet: none may.
        """
        self._lookup.read_written()
        try:
            return prestart(self._state, resource, ids, time.time_ns())
        except NotYet:
            await self._lookup.list()
            return prestart(self._state, resource, ids, time.time_ns())
