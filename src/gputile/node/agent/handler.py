"""Answers the kubelet's calls: collects data, asks other modules to decide, writes the result.

For each resource of a container, the kubelet may call ``GetPreferredAllocation``, and then calls
``Allocate``. Before each start of the container it calls ``PreStartContainer``. ``callers`` finds
the calling pod, ``allocation`` decides about IDs, and ``container_start`` about starts.

A call blocks the admission of all pods of the node, and the kubelet has no deadline for it. So each
request that the agent makes during a call has a deadline. The agent waits for the kubelet's list
for up to three seconds, because a busy node is slow, but only for half a second if the kubelet did
not answer the previous request. The agent waits longer for the API server, but only if the calling
pod is not known otherwise. A wrong choice of devices would be permanent, because the kubelet never
changes the devices of a pod.
"""

import asyncio
import logging
import time

from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation import allocate, preferred, record_mounts
from gputile.node.agent.allocation_state import UNKNOWN_CALLER, Caller
from gputile.node.agent.callers import callers, unclear
from gputile.node.agent.container_start import ContainerPreparation, NotYet, prestart
from gputile.node.agent.device_table import Listing
from gputile.node.agent.files.allocation_files import mounts_of
from gputile.node.agent.holdings import derive, forget_unwritten
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.metrics import AgentMetrics
from gputile.node.agent.rules import AllocationConflict
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import Call, CallAnswer, CallRefused

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MOST_LOOKUPS = 8


class AllocationHandler:
    """Answers the calls to all device plugins of the node."""

    def __init__(
        self, advertiser: Advertiser, files: ContainerPreparation, metrics: AgentMetrics
    ) -> None:
        self._advertiser, self._files, self._metrics = advertiser, files, metrics
        self._state, self._records = advertiser.state, advertiser.records
        self._kubelet, self._compare = advertiser.kubelet, advertiser.wakeups.compare
        self._lists = True  # whether the kubelet answered the last List request

    async def answer(self, call: Call) -> CallAnswer | CallRefused:
        """Answer a call to the plugin of one resource."""
        methods = {
            "GetPreferredAllocation": self._preferred,
            "Allocate": self._allocate,
            "PreStartContainer": self._prestart,
        }
        try:
            with self._metrics.seconds.labels(call.method).time():
                return CallAnswer(call.number, await methods[call.method](call.resource, call.body))
        except AllocationConflict as error:
            return CallRefused(call.number, "FAILED_PRECONDITION", str(error))
        except NotYet as error:
            return CallRefused(call.number, "UNAVAILABLE", str(error))
        except Exception as error:
            log.exception("%s of %s", call.method, call.resource)
            return CallRefused(call.number, "INTERNAL", f"{type(error).__name__}: {error}")

    async def _preferred(self, resource: str, body: bytes) -> bytes:
        """Return the preferred IDs, or none after a failure.

        An error would permanently fail the pod.
        """
        answers = []
        for asked in pb.PreferredAllocationRequest.FromString(body).container_requests:
            available, must = asked.available_deviceIDs, asked.must_include_deviceIDs
            size = asked.allocation_size
            ids: tuple[str, ...] = ()
            try:
                caller = await self._find_caller(resource, size)
                ids = preferred(self._state, caller, resource, available, must, size)
                self._state.expect(resource, ids, caller)
            except Exception:
                log.exception("no preference for %d of %s", size, resource)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return pb.PreferredAllocationResponse(container_responses=answers).SerializeToString()

    async def _allocate(self, resource: str, body: bytes) -> bytes:
        asked = pb.AllocateRequest.FromString(body).container_requests
        answers = [await self._container(resource, tuple(each.devices_ids)) for each in asked]
        return pb.AllocateResponse(container_responses=answers).SerializeToString()

    async def _container(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        state = self._state
        expected = state.expected_caller(resource, ids, self._kubelet.state.epoch)
        caller = expected or await self._find_caller(resource, len(ids))
        try:
            allocated = allocate(state, caller, resource, ids, time.time_ns())
        except AllocationConflict as error:
            self._metrics.contradictions.inc()
            log.error("refused %d of %s: %s", len(ids), resource, error)
            raise
        if not caller.key:
            log.warning("allocated %d of %s to a pod that is not known yet", len(ids), resource)
        response = self._files.response(state.node_config.mode, allocated)
        record = record_mounts(state, allocated.directory, mounts_of(response))
        try:
            self._files.prepare(allocated.directory, record)
        except OSError as error:  # the record is written again before the container starts
            log.error("the record of an allocation is not written, and is retried: %s", error)
        self._advertiser.allocated()
        self._compare.wish()
        return response

    async def _prestart(self, resource: str, body: bytes) -> bytes:
        await self.prestart(
            resource, tuple(pb.PreStartContainerRequest.FromString(body).devices_ids)
        )
        return pb.PreStartContainerResponse().SerializeToString()

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start. Raises NotYet if it must wait."""
        self._records.read(self._state, time.time_ns())
        try:
            try:
                starting = prestart(self._state, resource, ids, time.time_ns())
            except NotYet:  # try again with a new list of the kubelet
                await self._list()
                starting = prestart(self._state, resource, ids, time.time_ns())
            for directory, limits in starting:
                await self._files.start(directory, limits, self._state)
        except NotYet:
            self._compare.wish()
            self._advertiser.allocated()
            raise

    # -- data for decisions

    async def _list(self) -> Listing | None:
        """Update the state from the kubelet's list. Return the list, or None without an answer."""
        listing = await self._kubelet.list(NEEDED_WITHIN_S if self._lists else FETCH_WITHIN_S)
        self._lists = listing is not None
        self._state.record_listing(
            listing, self._kubelet.state.epoch, settled=self._kubelet.settled
        )
        self._records.read(self._state, time.time_ns())
        return listing

    async def _find_caller(self, resource: str, size: int) -> Caller:
        """Find the calling container. If it is not certain, read candidates from the API server.

        ``callers`` describes how the container is found.
        """
        listing = await self._list()
        forget_unwritten(self._state, resource)
        until = time.monotonic() + PATIENCE_S
        while keys := unclear(self._state, listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read_pod(key) for key in keys))
            known = all(key in self._state.pods for key in keys)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        derive(self._state, time.time_ns())
        return next(iter(callers(self._state, listing, resource, size)), UNKNOWN_CALLER)

    async def _read_pod(self, key: str) -> bool:
        """Read a pod from the API server. Return whether the API server answered."""
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                pod = await self._advertiser.cluster.pod(namespace, name, READ_WITHIN_S)
        except (KubeError, TimeoutError) as error:
            log.warning("cannot read pod %s: %s", key, error)
            return False
        if pod is not None and pod.spec.node_name == self._advertiser.host.node_name:
            answered_pod(self._state.pods, pod, self._state.configuration)
        return True
