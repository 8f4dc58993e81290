"""Answers the kubelet: looks up what a decision needs, lets ``allocation`` decide, writes it down.

A call holds up every pod of the node and has no deadline in the kubelet, so each request has one here. The agent waits
for the kubelet's list for less than half a second; for three seconds where only the list can tell whose call it is,
since it takes a while on a busy node, but not again if it did not come the last time. The agent waits longer for the
API server, but only for a pod of which nothing else is known: the kubelet keeps for good what such a pod is given.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation import DeviceAllocator, answered, unclear, unnamed
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import AllocateAnswer
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.cluster.informer import Wakeup
from gputile.node.agent.container_start import (
    ContainerPreparation,
    NotYet,
    Start,
    only_for,
    prestart,
    shown_for,
    unmatched,
)
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.files.isolation_mounts import NotIsolated
from gputile.node.agent.files.kubelet_checkpoint import mounts_of
from gputile.node.agent.files.records import Records
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.kubelet import AgentNotReady, KubeletLink
from gputile.node.agent.ownership import settle
from gputile.node.agent.pod_devices import PodDevices
from gputile.node.agent.rules import AllocationConflict
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MOST_LOOKUPS = 8


class Lookup:
    """Brings the state up to date before a call is decided. ``latest`` is the last list of the kubelet's.

    ``records`` has what the kubelet has written down.
    """

    def __init__(
        self, state: AllocationState, kubelet: KubeletLink, records: Records, cluster: NodeApi, node: str
    ) -> None:
        self.latest: Listing = {}
        self.records = records
        self._state = state
        self._kubelet = kubelet
        self._cluster = cluster
        self._node = node
        self._answers = True

    async def list(self, within: float = FETCH_WITHIN_S) -> Listing | None:
        listing = await self._kubelet.list(within)
        self._answers = listing is not None
        if listing is not None:
            self.latest = listing
        return listing

    async def look(self, resource: str, size: int) -> Listing | None:
        """Return what the kubelet lists, after reading those pods from the API server that may be the one."""
        needed = self._answers and unnamed(self._state, resource, size)
        listing = await self.list(NEEDED_WITHIN_S if needed else FETCH_WITHIN_S)
        self._state.heard(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        self._settle(listing)
        until = time.monotonic() + PATIENCE_S
        while keys := unclear(self._state, listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read(key) for key in keys))
            self._settle(listing)  # a pod that is known now has what it was answered before under a stand-in
            known = all(key in self._state.pods for key in keys)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        return listing

    def _settle(self, listing: Listing | None) -> None:
        if listing is not None:
            settle(self._state, listing, time.time_ns())

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
            listing = await self._lookup.look(resource, size)
            allocator = DeviceAllocator(self._state, listing, time.monotonic())
            return allocator.preferred(resource, available, must, size)

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what a container gets.

        Raises:
            AllocationConflict: the IDs cannot be served.
        """
        with self._metrics.seconds.labels("Allocate").time():
            try:
                answer, pod_devices = await self._decide(resource, ids, time.monotonic())
            except AllocationConflict as error:
                self._metrics.contradictions.inc()
                log.error("refused %d of %s: %s", len(ids), resource, error)
                raise
            if not pod_devices.identified:
                self._metrics.unidentified.inc()
                log.warning("gave %d of %s to a pod that nobody knows yet", len(ids), resource)
            response = self._files.response(self._state.node_config.mode, answer)
            answered(self._state, pod_devices.uid, resource, answer.directory, mounts_of(response.mounts))
            try:
                self._files.prepare(answer)
                self._lookup.records.save(self._state)
            except OSError as error:  # made good before the container starts, or recovered
                log.error("the agent's state cannot be written, and is written again later: %s", error)
            self._advertiser.allocated()
            self._compare.wish()
            return response

    async def _decide(self, resource: str, ids: tuple[str, ...], now: float) -> tuple[AllocateAnswer, PodDevices]:
        """Take the IDs as given; look at the kubelet's list (again) before they are refused, since that is for good.

        What the list said when the kubelet asked for a preference may be forgotten by now: the kubelet's checkpoint,
        say, named a pod that had just ended, and it was taken for one that runs.
        """
        preferred = self._state.admission.expected
        expected = preferred is not None and preferred.is_for(resource, ids, now)  # so its pod is known already
        listing = None if expected else await self._lookup.look(resource, len(ids))
        written = None if expected else self._lookup.records.owners(resource, ids)
        try:
            return DeviceAllocator(self._state, listing, now, time.time_ns(), written).allocate(resource, ids)
        except AllocationConflict as error:
            if expected:
                listing = await self._lookup.look(resource, len(ids))
            allocator = DeviceAllocator(self._state, listing, now, time.time_ns(), written)
            decided = allocator.allocate(resource, ids, may_wait=True)
            log.warning("%d of %s are given, to start later: %s", len(ids), resource, error)
            return decided

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start.

        Raises:
            AgentNotReady: it must not start yet.
        """
        with self._metrics.seconds.labels("PreStartContainer").time():
            listing: Listing | None = self._lookup.latest
            holders = {pod_devices.key for pod_devices in self._state.device_table.holders(resource, ids)}
            if holders.isdisjoint(shown_for(self._lookup.latest, resource, frozenset(ids))):
                listing = await self._lookup.list(NEEDED_WITHIN_S)
            try:
                before = tuple(self._state.device_table)
                starting = self._starting(resource, ids, listing)
                if tuple(self._state.device_table) != before:
                    self._lookup.records.save(self._state)  # the next agent must know whose the container is, too
                for start in starting:
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

    def _starting(self, resource: str, ids: tuple[str, ...], listing: Listing | None) -> list[Start]:
        owners = self._lookup.records.owners(resource, ids) or frozenset()
        found = prestart(self._state, resource, ids, listing, time.time_ns())
        if any(start.mounts is None for start in found) or unmatched(self._state, found, owners):
            self._lookup.records.recover(self._state)
            found = prestart(self._state, resource, ids, listing, time.time_ns())
        return only_for(self._state, found, owners)
