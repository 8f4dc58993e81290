"""Answers the kubelet's calls: collects data, lets ``allocation`` decide, and writes the result.

For each resource of a container the kubelet calls ``GetPreferredAllocation`` (not always, see
``callers``), ``Allocate``, and before each start ``PreStartContainer`` (``container_start``).

A call blocks the admission of every pod of the node and has no deadline in the kubelet, so each
request that the agent makes meanwhile has a deadline. The agent waits for the kubelet's list for up
to three seconds, since a busy node needs some time, or for half a second if the previous request
failed. The agent waits longer for the API server, but only for a pod that is otherwise unknown,
since the kubelet never changes what it has allocated to a pod.
"""

import asyncio
import logging
import time

from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation import allocate, preferred, record_mounts
from gputile.node.agent.allocation_state import UNKNOWN_CALLER, Caller
from gputile.node.agent.api_server import Wakeup
from gputile.node.agent.callers import callers
from gputile.node.agent.container_start import ContainerPreparation, NotYet, prestart
from gputile.node.agent.device_table import Listing
from gputile.node.agent.files.allocation_files import mounts_of
from gputile.node.agent.holdings import derive, forget_unwritten
from gputile.node.agent.metrics import AgentMetrics
from gputile.node.agent.rules import AllocationConflict
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import Call, CallAnswer, CallRefused

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
_NOTHING = ("", frozenset[str](), 0.0), UNKNOWN_CALLER


class AllocationHandler:
    """Answers the calls on all device plugins. ``compare`` wakes the reconciler."""

    def __init__(
        self,
        advertiser: Advertiser,
        files: ContainerPreparation,
        compare: Wakeup,
        metrics: AgentMetrics,
    ) -> None:
        self._state = advertiser.state
        self._kubelet = advertiser.kubelet
        self._records = advertiser.records
        self._advertiser = advertiser
        self._files = files
        self._compare = compare
        self._metrics = metrics
        # The Allocate call that most likely follows GetPreferredAllocation, and its caller.
        self._expected = _NOTHING

    async def answer(self, call: Call) -> CallAnswer | CallRefused:
        """Answer a call on the plugin of one resource."""
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
        """Return the preferred IDs.

        If that fails, return no preference, since an error would fail the pod for good.
        """
        answers = []
        for asked in pb.PreferredAllocationRequest.FromString(body).container_requests:
            available = asked.available_deviceIDs
            must = asked.must_include_deviceIDs
            size = asked.allocation_size
            ids: tuple[str, ...] = ()
            try:
                caller = await self._find_caller(resource, size)
                ids = preferred(self._state, caller, resource, available, must, size)
                self._expected = (resource, frozenset(ids), self._kubelet.state.epoch), caller
            except Exception:
                log.exception("no preference for %d of %s", size, resource)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return pb.PreferredAllocationResponse(container_responses=answers).SerializeToString()

    async def _allocate(self, resource: str, body: bytes) -> bytes:
        asked = pb.AllocateRequest.FromString(body).container_requests
        answers = [await self._container(resource, tuple(each.devices_ids)) for each in asked]
        return pb.AllocateResponse(container_responses=answers).SerializeToString()

    async def _container(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        state, now_ns = self._state, time.time_ns()
        asked, caller = self._expected
        call = resource, frozenset(ids), self._kubelet.state.epoch
        if asked != call or caller.pod is not state.pods.get(caller.key):
            caller = await self._find_caller(resource, len(ids))
        self._expected = _NOTHING
        try:
            allocated = allocate(state, caller, resource, ids, now_ns)
        except AllocationConflict as error:
            self._metrics.contradictions.inc()
            log.error("refused %d of %s: %s", len(ids), resource, error)
            raise
        if not caller.key:
            log.warning("gave %d of %s to a pod that nobody knows yet", len(ids), resource)
        response = self._files.response(state.node_config.mode, allocated)
        record = record_mounts(state, allocated.directory, mounts_of(response))
        try:
            self._files.prepare(allocated, record)
        except OSError as error:  # it is written again before the container starts
            log.error("the agent's state cannot be written, and is written again later: %s", error)
        self._advertiser.allocated()
        self._compare.wish()
        return response

    async def _prestart(self, resource: str, body: bytes) -> bytes:
        await self.prestart(
            resource, tuple(pb.PreStartContainerRequest.FromString(body).devices_ids)
        )
        return pb.PreStartContainerResponse().SerializeToString()

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start.

        Raises:
            NotYet: the container must not start yet.
        """
        self._records.read(self._state, time.time_ns())
        try:
            try:
                starting = prestart(self._state, resource, ids, time.time_ns())
            except NotYet:  # the kubelet's list may have changed
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
        """Update the state from the kubelet's list, and return the list; None if it is too late."""
        silent = self._state.kubelet.silent
        listing = await self._kubelet.list(FETCH_WITHIN_S if silent else NEEDED_WITHIN_S)
        self._state.record_listing(listing, settled=self._kubelet.settled)
        self._records.read(self._state, time.time_ns())
        return listing

    async def _find_caller(self, resource: str, size: int) -> Caller:
        """Identify the caller, if necessary by reading the node's pods from the API server."""
        state, listing = self._state, await self._list()
        forget_unwritten(state, resource)
        until = time.monotonic() + PATIENCE_S
        while listing is not None:
            found = callers(state, listing, resource, size)
            if sum(each.sure for each in found) == 1:
                break
            try:
                async with asyncio.timeout(READ_WITHIN_S):
                    await self._advertiser.read_bound_pods()
                break
            except (KubeError, TimeoutError) as error:
                log.warning("cannot read the pods of this node: %s", error)
            if all(each.key in state.pods for each in found) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        derive(state, time.time_ns())
        return next(iter(callers(state, listing, resource, size)), UNKNOWN_CALLER)
