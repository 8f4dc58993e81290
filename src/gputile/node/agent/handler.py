"""Answers the kubelet's calls.

For one container of one resource the kubelet calls ``GetPreferredAllocation`` (not always, ``preferred_allocation``),
``Allocate``, and before each start ``PreStartContainer`` (``container_start``).

A refused ``Allocate`` kills the pod for good, and its controller makes the next one at once. So ``Allocate`` goes by
the IDs, and is refused only where they can never be served: those of GPUs that are not there, or of too many.
Everything that is a matter of time waits at ``PreStartContainer``, which the kubelet tries again and again.
"""

import logging
import time

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.answers import AllocateAnswer, environment
from gputile.node.agent.api_server import Wakeup
from gputile.node.agent.callers import Lookup
from gputile.node.agent.container_start import ContainerPreparation, NotYet, prestart
from gputile.node.agent.files.allocation_files import mounts_of
from gputile.node.agent.holdings import answer, derive
from gputile.node.agent.preferred_allocation import preferred
from gputile.node.agent.rules import AllocationConflict, Occupied, rules_of
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.gateway.link import Call, CallAnswer, CallRefused
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)


def allocate(
    state: AllocationState, caller: Caller | None, resource: str, ids: tuple[str, ...], now_ns: int
) -> AllocateAnswer:
    """Record that ``ids`` are given to the container that is being admitted; return what it gets.

    Raises:
        AllocationConflict: they can never be served.
    """
    state.admission.expected = None
    handed_on = {
        device_id
        for held in state.device_table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource and each.phase is Phase.INIT
        for device_id in each.ids
    }
    before = state.records.copy(), set(state.admission.answered)
    directory = answer(state, caller, resource, ids, now_ns)
    row, devices = next(
        (held, each)
        for held in state.device_table
        for each in held.devices
        if (each.directory, each.resource) == (directory, resource)
    )
    pod = caller.pod if caller is not None else None
    gpus = pod.request.shape.gpus if pod is not None and pod.request is not None else 1
    try:
        rules_of(state).check(row, devices, gpus, reused=handed_on.issuperset(ids))
    except Occupied:
        pass
    except AllocationConflict:
        state.records, state.admission.answered = before
        derive(state, now_ns)
        raise
    state.admission.last_uid = row.uid
    on = state.gpus(row, devices.container, pod)
    shares = state.shares(row, devices.container)
    uuids = state.node_config.visible(ids, on)
    mib = row.mib(min(on, default=""))
    if pod is not None and pod.request is not None:
        mib = pod.request.shape.mib
    threads = pod.mps_threads if pod is not None else 0
    variables = environment(state.node_config, uuids, shares, row.unit_mib, mib, threads)
    return AllocateAnswer(variables, directory, uuids)


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
        """Return the preferred IDs. An error would fail the pod for good, so the answer is then no preference."""
        answers = []
        for asked in pb.PreferredAllocationRequest.FromString(body).container_requests:
            available, must, size = asked.available_deviceIDs, asked.must_include_deviceIDs, asked.allocation_size
            ids: tuple[str, ...] = ()
            try:
                caller = await self._lookup.caller(resource, size)
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
        state, expected, now_ns = self._state, self._state.admission.expected, time.time_ns()
        if expected is not None and (expected.resource, expected.ids) == (resource, frozenset(ids)):
            caller = expected.caller
        else:
            caller = await self._lookup.caller(resource, len(ids))
        try:
            allocated = allocate(state, caller, resource, ids, now_ns)
        except AllocationConflict as error:
            self._metrics.contradictions.inc()
            log.error("refused %d of %s: %s", len(ids), resource, error)
            raise
        if caller is None:
            self._metrics.unidentified.inc()
            log.warning("gave %d of %s to a pod that nobody knows yet", len(ids), resource)
        response = self._files.response(state.node_config.mode, allocated)
        record = msgspec.structs.replace(state.records[allocated.directory], mounts=mounts_of(response.mounts))
        state.records[allocated.directory] = record
        try:
            self._files.prepare(allocated, record)
        except OSError as error:  # made good before the container starts
            log.error("the agent's state cannot be written, and is written again later: %s", error)
        self._advertiser.allocated()
        self._compare.wish()
        return response

    async def _prestart(self, resource: str, body: bytes) -> bytes:
        await self.prestart(resource, tuple(pb.PreStartContainerRequest.FromString(body).devices_ids))
        return pb.PreStartContainerResponse().SerializeToString()

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start.

        Raises:
            NotYet: it must not start yet.
        """
        self._lookup.read_written()
        try:
            try:
                starting = prestart(self._state, resource, ids, time.time_ns())
            except NotYet:  # what the kubelet lists may be news
                await self._lookup.list()
                starting = prestart(self._state, resource, ids, time.time_ns())
            for start in starting:
                await self._files.start(start, self._state)
        except NotYet:
            self._compare.wish()
            self._advertiser.allocated()
            raise
