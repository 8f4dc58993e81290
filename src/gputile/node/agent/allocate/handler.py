"""Answers the kubelet: fetches what a decision needs, lets ``AllocationState`` decide, writes down what was decided.

A call holds up every pod of the node and has no deadline in the kubelet, so what is fetched has one here. The
kubelet's list is waited for less than half a second. The API server is waited for longer, but only where it gives no
answer about a pod that nothing is known of: what such a pod is given without knowing it, the kubelet keeps for good.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gputile.api.well_known import Mode
from gputile.kube.errors import KubeError
from gputile.node.agent.advertise.mps import CONTAINER_PIPES, PIPE_ENV, MpsDaemons, daemon_name
from gputile.node.agent.allocate.allocation_state import AllocationState, NotYet, Start
from gputile.node.agent.allocate.answer import CONTAINER_DIRECTORY, Grant, Limits, mounts_of
from gputile.node.agent.allocate.cdi_files import CdiFiles
from gputile.node.agent.allocate.isolation_mounts import IsolationMounts, NotIsolated
from gputile.node.agent.allocate.kubelet_calls import AgentNotReady
from gputile.node.agent.allocate.lingering_processes import LingeringProcesses
from gputile.node.agent.allocate.pod_cache import answered_pod
from gputile.node.agent.allocate.pod_devices import PodDevices
from gputile.node.agent.allocate.validation import AllocationConflict
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.checkpoint.store import Store
from gputile.node.agent.gateway_link import KubeletLink
from gputile.node.agent.reconcile.listing import Listing
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

FETCH_WITHIN_S = 0.45
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MPS_DIRECTORY = "mps"
DAEMON_WITHIN_S = 5.0
LEFT_WITHIN_S, LOOK_AGAIN_S = 20.0, 0.1  # the kubelet waits 30 s for PreStartContainer
MOST_LOOKUPS = 8


class AllocationHandler:
    """The desk of one node. ``asked`` is when the kubelet last asked for anything, on the monotonic clock.

    ``changed`` is called after each allocation, ``save`` writes the checkpoint, and ``share_time`` writes down the
    share of GPU time of a container that is about to start. ``recover`` reads what the kubelet has kept.
    """

    def __init__(
        self,
        admission: AllocationState,
        store: Store,
        host_state: Path,
        kubelet: KubeletLink,
        cluster: NodeApi,
        metrics: AgentMetrics,
        node: str,
        save: Callable[[], None],
        changed: Callable[[], None],
        mps: MpsDaemons,
        cdi: CdiFiles | None = None,
        share_time: Callable[[str], None] = lambda _: None,
        recover: Callable[[], None] = lambda: None,
    ) -> None:
        self._lingering = LingeringProcesses(store, admission.directories)
        self._admission = admission
        self._store = store
        self._host_allocations = host_state / "allocations"
        self._host_mps = host_state / MPS_DIRECTORY
        self._enforcement = IsolationMounts(store.directory, host_state, store.usage)
        self._kubelet = kubelet
        self._cluster = cluster
        self._metrics = metrics
        self._node = node
        self._save = save
        self._changed = changed
        self._mps = mps
        self._cdi = cdi
        self._share_time = share_time
        self._recover = recover
        self._latest: Listing = {}
        self.asked = 0.0

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the IDs that the kubelet should take."""
        self.asked = time.monotonic()
        with self._metrics.seconds.labels("GetPreferredAllocation").time():
            listing = await self._look(resource, size)
            return self._admission.preferred(resource, available, must, size, listing, time.monotonic())

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what a container gets.

        Raises:
            Contradiction: the IDs cannot be served.
        """
        self.asked = time.monotonic()
        with self._metrics.seconds.labels("Allocate").time():
            now, listing = self.asked, None
            expected = self._admission.expects(resource, ids, now)
            if not expected:
                listing = await self._look(resource, len(ids))
            try:
                grant, holding = await self._grant(resource, ids, listing, now, again=expected)
            except AllocationConflict as error:
                self._metrics.contradictions.inc()
                log.error("refused %d of %s: %s", len(ids), resource, error)
                raise
            if not holding.identified:
                self._metrics.unidentified.inc()
                log.warning("gave %d of %s to a pod that nobody knows yet", len(ids), resource)
            response = self._response(grant)
            self._admission.answered(holding.uid, resource, grant.directory, mounts_of(response.mounts))
            self._write(grant)
            self._changed()
            return response

    async def _grant(
        self, resource: str, ids: tuple[str, ...], listing: Listing | None, now: float, *, again: bool
    ) -> tuple[Grant, PodDevices]:
        """Take the IDs as given. ``again`` looks at the kubelet's list before it refuses, since that is for good.

        What the list said when the kubelet asked for a preference may be forgotten by now: the kubelet's checkpoint,
        say, named a pod that had just ended, and it was taken for one that runs.
        """
        try:
            return self._admission.allocate(resource, ids, listing, now, time.time_ns())
        except AllocationConflict as error:
            if again:
                listing = await self._look(resource, len(ids))
            granted = self._admission.allocate(resource, ids, listing, now, time.time_ns(), may_wait=True)
            log.warning("%d of %s are given, to start later: %s", len(ids), resource, error)
            return granted

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Write the limits of a container that is about to start.

        Raises:
            AgentNotReady: it must not start yet.
        """
        wanted = frozenset(ids)
        with self._metrics.seconds.labels("PreStartContainer").time():
            listing: Listing | None = self._latest
            if not any(wanted == shown for pod in self._latest.values() for _, _, shown in pod.parts()):
                listing = await self._list()
            try:
                for start in self._starting(resource, ids, listing):
                    await self._until_served(start.limits)
                    await self._until_left(start.limits)
                    usage = self._enforcement.prepare(Mode(start.limits.mode), start.directory, start.mounts)
                    self._store.write_limits(start.directory, start.limits, usage)
                    self._admission.holdings.let_start(start.directory)
                    self._share_time(start.directory)
            except NotYet as error:
                self._changed()
                raise AgentNotReady(str(error)) from error
            except NotIsolated as error:
                pod = f"{start.limits.namespace}/{start.limits.pod}"
                raise AgentNotReady(
                    f"container {start.limits.container} of pod {pod} does not start: {error}"
                ) from error
            except (OSError, ValueError) as error:
                raise AgentNotReady(f"the limits cannot be written: {error}") from error

    def _starting(self, resource: str, ids: tuple[str, ...], listing: Listing | None) -> list[Start]:
        found = self._admission.prestart(resource, ids, listing, time.time_ns())
        if any(start.mounts is None for start in found):
            self._recover()
            found = self._admission.prestart(resource, ids, listing, time.time_ns())
        return found

    async def _until_served(self, limits: Limits) -> None:
        """Wait for the container's MPS control daemon; a daemon for several GPUs starts when they are allocated."""
        cards = tuple(share.uuid for share in limits.cards)
        if limits.mode != Mode.MPS.value or not cards:
            return
        try:
            async with asyncio.timeout(DAEMON_WITHIN_S):
                await self._mps.until_up(cards)
        except TimeoutError as error:
            why = f": {self._mps.problem}" if self._mps.problem else ""
            raise AgentNotReady(f"the MPS control daemon of {', '.join(cards)} does not run yet{why}") from error

    async def _until_left(self, limits: Limits) -> None:
        """Wait until the processes of pods that are gone have let go of the container's cards."""
        cards = frozenset(share.uuid for share in limits.cards)
        for _ in range(int(LEFT_WITHIN_S / LOOK_AGAIN_S)):
            if not self._lingering.on(cards):
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        if gone := self._lingering.on(cards):
            raise AgentNotReady(f"processes of pod {gone}, which is gone, still have memory of its cards")

    async def _list(self) -> Listing | None:
        listing = await self._kubelet.list(FETCH_WITHIN_S)
        if listing is not None:
            self._latest = listing
        return listing

    async def _look(self, resource: str, size: int) -> Listing | None:
        """Return what the kubelet lists, after reading those pods from the API server that may be the one."""
        listing = await self._list()
        if listing is not None:
            self._admission.settled = self._kubelet.settled
            self._admission.settle(listing, time.time_ns())
        until = time.monotonic() + PATIENCE_S
        while unclear := self._admission.unclear(listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read(key) for key in unclear))
            known = all(key in self._admission.pods for key in unclear)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        return listing

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
            answered_pod(self._admission.pods, pod, self._admission.configuration)
        return True

    def _write(self, grant: Grant) -> None:
        """Write down what was granted; what fails here is made good before the container starts, or recovered."""
        try:
            self._store.prepare(grant.directory)
            if PIPE_ENV in grant.environment:
                self._mps.pipes(grant.uuids).mkdir(parents=True, exist_ok=True)
            self._save()
        except OSError:
            log.exception("cannot write the state of the agent")

    def _response(self, grant: Grant) -> pb.ContainerAllocateResponse:
        allocation = self._host_allocations / grant.directory
        mounts = [pb.Mount(container_path=CONTAINER_DIRECTORY, host_path=str(allocation), read_only=True)]
        mounts += self._enforcement.mounts(self._admission.setup.mode, grant.directory)
        if PIPE_ENV in grant.environment:
            pipes = self._host_mps / daemon_name(grant.uuids) / "pipe"
            mounts.append(pb.Mount(container_path=CONTAINER_PIPES, host_path=str(pipes)))
        devices = self._cdi.devices(grant.uuids) if self._cdi is not None else ()
        return pb.ContainerAllocateResponse(
            envs=dict(grant.environment), mounts=mounts, cdi_devices=[pb.CDIDevice(name=name) for name in devices]
        )
