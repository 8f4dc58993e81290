"""The agent of one node: the loops that keep machine, kubelet and API server in step, around the core that decides."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, unversioned
from gputile.kube.decoding import Applied, Deleted, Replaced, WatchEvent
from gputile.kube.errors import KubeError
from gputile.node.agent.advertise.advertised_state import AdvertisedState, starting_node_config
from gputile.node.agent.advertise.mode_change import ModeChange, Wakeups
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.cdi_files import CdiFiles
from gputile.node.agent.allocate.container_preparation import ContainerPreparation
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.handler import AllocationHandler
from gputile.node.agent.allocate.lookup import Lookup
from gputile.node.agent.allocate.pod_cache import apply_pod, read_again, remove_pod, replace_pods
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.checkpoint.node_files import NodeFiles
from gputile.node.agent.checkpoint.records import Records
from gputile.node.agent.gateway_link import KubeletLink
from gputile.node.agent.gpu_time.arbiter_process import ArbiterProcess
from gputile.node.agent.gpu_time.time_shares import TimeShares, gpu_times, time_shares
from gputile.node.agent.hand_over import HandOver
from gputile.node.agent.host import Host
from gputile.node.agent.reconcile.corrections import CorrectionWriter
from gputile.node.agent.reconcile.drift_check import DriftCheck
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.agent.status.node_status import tell_node, wanted_status
from gputile.node.gateway.messages import FromGateway, MessageChannel
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.isolation.limits_format import USAGE
from gputile.support.loop_lag import LoopLag

log = logging.getLogger(__name__)

SYNC_WITHIN_S = 2.0  # how long registration waits for the API server's pods; admission asks for single ones later
RECONCILE_EVERY_S = 10.0
RECONCILE_APART_S = 0.3
ROUND_WITHIN_S = 40.0  # the gateway ends an agent that has asked it nothing for 90 s
AGAIN_S = 1.0  # after a pod has changed while it was being corrected
PROBE_STEP_S = 5.0
TELL_EVERY_S = 60.0
QUIET_FOR_S = 120.0
CLOSED_FOR_S = 2.0  # what the scheduler decided before it saw the node closed has been bound or refused by then


class Agent:
    """One node's agent, behind its ``gateway``. Feed it with ``on_pods`` and ``on_node``; ``run`` until cancelled.

    ``closed_for`` is how many seconds a node takes no pods before its mode changes.
    """

    def __init__(
        self,
        host: Host,
        cluster: NodeApi,
        configuration: Configuration,
        gateway: MessageChannel[FromGateway],
        node_lock: NodeLock,
        closed_for: float = CLOSED_FOR_S,
    ) -> None:
        self.metrics = AgentMetrics()
        self.kubelet = KubeletLink(gateway)
        self._lag = LoopLag("agent")
        self.metrics.registry.register(self._lag.seconds)
        self._host = host
        self._cluster = cluster
        self._synced, self._node_seen = asyncio.Event(), asyncio.Event()
        self.wakeups = Wakeups()
        self._beat = time.monotonic()
        self._told = False
        self._worker = ThreadPoolExecutor(1, "gpu-probe")
        paths = host.paths
        self._store = NodeFiles(paths.state, node_lock, UsageFiles(paths.usage / USAGE))
        self._records = Records(self._store, paths.device_plugins)
        self.allocation_state = self._starting_state(configuration)
        self._handover = HandOver(cluster, self.kubelet, self.allocation_state, closed_for)
        cdi = CdiFiles(paths.cdi, paths.root) if paths.cdi is not None else None
        self.advertised = AdvertisedState(
            self.allocation_state, self._records, self.kubelet, host.mps, cdi, paths.device_plugins
        )
        self._arbiter = ArbiterProcess(self._store, self._time_shares, self._used)
        self.handler = AllocationHandler(
            self.allocation_state,
            Lookup(self.allocation_state, self.kubelet, cluster, host.node_name),
            ContainerPreparation(self._store, paths, host.mps, cdi, self._arbiter),
            self.advertised,
            self.wakeups.compare,
            self.metrics,
        )
        self.mode = ModeChange(self.advertised, host.monitor, cluster, self.wakeups, closed_for)
        writer = CorrectionWriter(cluster, self.metrics, self.allocation_state)
        self._drift = DriftCheck(self.allocation_state, self.kubelet, self._records, writer, self.mode, self._arbiter)

    def _starting_state(self, configuration: Configuration) -> AllocationState:
        """Return what the agent before this one has left."""
        node_config = starting_node_config(
            self._host.monitor.seen, self._records.effective_mode, configuration.unit_mib
        )
        device_table = DeviceTable(self._records.saved.pods, self._store.started())
        return AllocationState(configuration, node_config, device_table)

    @property
    def node(self) -> Node | None:
        """The node as the watch has it."""
        return self.allocation_state.node

    # -- what the API server says

    def on_pods(self, event: WatchEvent[Pod]) -> None:
        """Take in news of the pods that are bound to this node."""
        pod_cache, configuration = self.allocation_state.pods, self.allocation_state.configuration
        match event:
            case Applied(pod):
                if not apply_pod(pod_cache, pod, configuration):
                    return
            case Deleted(pod):
                remove_pod(pod_cache, pod)
            case Replaced(pods):
                replace_pods(pod_cache, pods, configuration)
                self._synced.set()
            case _:
                return
        self.wakeups.compare.wish()

    def on_node(self, event: WatchEvent[Node]) -> None:
        """Take in news of this node."""
        match event:
            case Applied(node):
                before, self.allocation_state.node = self.allocation_state.node, node
                if before is not None and unversioned(before) == unversioned(node):
                    return
            case Replaced(nodes):
                name = self._host.node_name
                self.allocation_state.node = next((node for node in nodes if node.metadata.name == name), None)
            case _:
                return
        if self.node is not None:
            self._node_seen.set()
        self.wakeups.compare.wish()
        self.wakeups.publish.wish()

    def configure(self, configuration: Configuration) -> None:
        """Take in a new configuration."""
        self.allocation_state.configuration = configuration
        read_again(self.allocation_state.pods, configuration)
        self.wakeups.compare.wish()

    # -- what probes ask, from any thread

    def not_healthy(self) -> str:
        """Return why the process should be started again, "" if it should not."""
        quiet = time.monotonic() - max(self._beat, self._handover.looked)
        return f"nothing has been compared for {quiet:.0f} s" if quiet > QUIET_FOR_S else ""

    def not_ready(self) -> str:
        """Return why the node is not served yet, "" if it is."""
        if not self.kubelet.registered.is_set():
            return "the kubelet has not taken the device plugins"
        return "" if self._told else "the node has not been told what it offers"

    # -- loops

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            ExceptionGroup: of a ``GatewayGoneError`` when the gateway has hung up.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lag.run())
                tasks.create_task(self.kubelet.run(self.handler))
                await self._begin()
                tasks.create_task(self._open())
                tasks.create_task(self._forever(self._watch_machine))
                tasks.create_task(self._forever(self._compare))
                tasks.create_task(self._forever(self._tell_node))
        finally:
            self._worker.submit(self._host.monitor.close)  # after the step under way, which waits on what this frees
            self._worker.shutdown(wait=False)
            await self._arbiter.stop()
            await self._host.mps.stop()

    async def _begin(self) -> None:
        """Look around, and take the node over from the agent before."""
        await self._look_at_machine(0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_WITHIN_S):
                await self._synced.wait()
                await self._node_seen.wait()
        await self.kubelet.told.wait()
        await self._handover.close()
        await self.kubelet.take_charge()
        self.metrics.starts.set(self.kubelet.state.starts)
        self._records.read_again(self.allocation_state.device_table)
        self._records.recover(self.allocation_state)
        self.advertised.take_over()
        await self.mode.renew()

    async def _open(self) -> None:
        """Let the node take pods again, if it has been closed for this agent to take over."""
        await self._handover.open()
        self.wakeups.publish.wish()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (KubeError, OSError) as error:
                log.warning("%s", error)
                await asyncio.sleep(1.0)

    async def _look_at_machine(self, seconds: float) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._host.monitor.step, seconds)

    async def _watch_machine(self) -> None:
        if await self._look_at_machine(PROBE_STEP_S):
            await self.mode.renew()

    async def _compare(self) -> None:
        self._beat = time.monotonic()
        await self.wakeups.compare.wait(RECONCILE_EVERY_S)
        try:
            async with asyncio.timeout(ROUND_WITHIN_S):
                again = await self._drift.round(synced=self._synced.is_set())
        except TimeoutError as error:
            raise TimeoutError(f"comparing took more than {ROUND_WITHIN_S:g} s, and begins anew") from error
        if again:
            asyncio.get_running_loop().call_later(AGAIN_S, self.wakeups.compare.wish)
        await asyncio.sleep(RECONCILE_APART_S)

    async def _tell_node(self) -> None:
        await self.wakeups.publish.wait(TELL_EVERY_S)
        if self.node is None or not self._store.mine:
            return
        left = self._handover.left(self.node)
        if left:
            asyncio.get_running_loop().call_later(left, self.wakeups.publish.wish)
        wanted = wanted_status(self.advertised, self._host.monitor.seen, opened=left == 0)
        try:
            told = await tell_node(self._cluster, self.node, wanted, datetime.now(UTC))
        except KubeError:
            self.wakeups.publish.wish()
            raise
        self._told = True
        if told:
            await asyncio.sleep(RECONCILE_APART_S)

    # -- what the arbiter is told, and says

    def _time_shares(self, beside: str) -> TimeShares:
        return time_shares(self.allocation_state, str(self._store.allocations), beside)

    def _used(self, used: Mapping[tuple[str, str], int]) -> None:
        """Take in the nanoseconds that each container has had on each GPU."""
        self.metrics.gpu_times.rows = tuple(gpu_times(self.allocation_state, used))
