"""Runs the loops that reconcile the machine, the kubelet and the API server with each other."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import DRIVER
from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import CLOSED_FOR_S, Advertiser, Host
from gputile.node.agent.api_server import NodeApi, NodeInformer, Wakeups
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.claims.driver import ClaimsDriver
from gputile.node.agent.claims.publisher import SlicePublisher
from gputile.node.agent.container_start import ContainerPreparation
from gputile.node.agent.files.allocation_files import NodeFiles, Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.hand_over import HandOver
from gputile.node.agent.handler import AllocationHandler
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.metrics import AgentMetrics, NodeMetrics
from gputile.node.agent.node_status import publish_status, wanted_status
from gputile.node.agent.reconciler import Reconciler
from gputile.node.agent.time_shares import time_shares
from gputile.node.gateway.link import (
    Call,
    CallAnswer,
    CallRefused,
    FromGateway,
    MessageChannel,
    NodeLock,
)
from gputile.node.isolation.library import USAGE
from gputile.support.telemetry import LoopLag

log = logging.getLogger(__name__)

# How long registration waits for the list of pods. Admission reads the pods that are missing.
SYNC_WITHIN_S = 2.0
RECONCILE_EVERY_S = 10.0
RECONCILE_APART_S = 0.3
ROUND_WITHIN_S = 40.0  # less than the 90 s of silence after which the gateway ends an agent
AGAIN_S = 1.0  # the pause before a retry if a pod changed while it was corrected
PROBE_STEP_S = 5.0
PROBE_HANGS_S = 60.0  # initializing many GPUs may take half a minute
LAG_EVERY_S = 1.0  # four measurements a second would use a quarter of an idle agent's CPU time
PUBLISH_EVERY_S = 60.0
QUIET_FOR_S = 120.0


class Agent:
    """The agent of a node, which connects the components and runs their loops.

    The components start from the files of the previous agent. The caller passes watch events to
    ``news``, and awaits ``run``. ``closed_for`` is the number of seconds for which a node is closed
    to new pods before its mode changes.
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
        paths = host.paths
        self.host = host
        self.cluster = cluster
        self.wakeups = Wakeups()
        self.metrics = AgentMetrics()
        self.kubelet = KubeletLink(gateway)
        store = NodeFiles(paths.state, node_lock, UsageFiles(paths.usage / USAGE))
        self.records = Records(store, paths.device_plugins)
        self.allocation_state = state = self.records.starting_state(host.machine(), configuration)
        self.arbiter = arbiter = ArbiterProcess(
            store, lambda on: time_shares(state, str(store.allocations), on)
        )
        self._node_metrics = NodeMetrics(state, host.monitor, store.usage, lambda: arbiter.spent)
        self.metrics.registry.register(self._node_metrics)
        self.advertiser = advertiser = Advertiser(
            state, host, self.kubelet, self.records, cluster, self.wakeups, closed_for
        )
        cdi = CdiFiles(paths.cdi) if paths.cdi is not None else None
        preparation = ContainerPreparation(store, host.mps, cdi, arbiter)
        self.handler = AllocationHandler(advertiser, preparation, self.metrics)
        self.claims = ClaimsDriver(
            host.node_name, state, preparation, cluster, self.wakeups.compare
        )
        self.slices = SlicePublisher(state, cluster, self.kubelet, paths, self.wakeups.publish)
        self.hand_over = HandOver(cluster, self.kubelet, state, closed_for)
        self.reconciler = Reconciler(advertiser, self.metrics, arbiter)
        self.news = NodeInformer(state, self.wakeups)
        self._lag = LoopLag("agent", every=LAG_EVERY_S)
        self.metrics.registry.register(self._lag.seconds)
        self._worker = ThreadPoolExecutor(1, "gpu-probe")
        self._probe: asyncio.Future[bool] | None = None
        self._compared = time.monotonic()
        self._published = False

    # -- probes, called from any thread

    def not_healthy(self) -> str | None:
        """Return why the process should be restarted, or None if it is healthy."""
        quiet = time.monotonic() - max(self._compared, self.hand_over.looked)
        return f"nothing has been compared for {quiet:.0f} s" if quiet > QUIET_FOR_S else None

    def not_ready(self) -> str | None:
        """Return why the node is not served yet, or None if it is served."""
        if not self.kubelet.registered.is_set():
            return "the kubelet has not registered the device plugins"
        return None if self._published else "the agent has not written the node's status"

    # -- loops

    async def run(self) -> None:
        """Serve until cancelled.

        Raises an ExceptionGroup with a ``GatewayGoneError`` if the gateway closes the connection.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lag.run())
                tasks.create_task(self.kubelet.run(self._answer))
                await self._begin()
                tasks.create_task(self._open())
                tasks.create_task(self._forever(self._watch_machine))
                tasks.create_task(self._forever(self._compare))
                tasks.create_task(self._forever(self._publish_status))
                tasks.create_task(self.slices.watch_kubelet())
        finally:
            # The worker closes the monitor after its current step, which still uses the monitor.
            self._worker.submit(self.host.monitor.close)
            self._worker.shutdown(wait=False)
            await self.arbiter.stop()
            await self.host.mps.stop()

    async def _answer(self, call: Call) -> CallAnswer | CallRefused:
        return await (
            self.claims.answer(call) if call.resource == DRIVER else self.handler.answer(call)
        )

    async def _begin(self) -> None:
        await self._probe_machine(0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_WITHIN_S):
                await self.news.pods_listed.wait()
                await self.news.node_seen.wait()
        await self.kubelet.state_received.wait()
        await self.hand_over.close()
        await self.kubelet.take_charge()
        self.metrics.agents_started = self.kubelet.state.starts
        self.records.take_over(self.allocation_state)
        self.claims.restore()
        self.records.read(self.allocation_state, time.time_ns())
        await self.advertiser.renew()

    async def _open(self) -> None:
        await self.hand_over.open()
        self.wakeups.publish.wish()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (KubeError, OSError) as error:
                log.warning("%s", error)
                await asyncio.sleep(1.0)

    async def _probe_machine(self, seconds: float) -> bool:
        """Return whether the machine may have changed. After a hang, await the same step again."""
        loop, step = asyncio.get_running_loop(), self.host.monitor.step
        self._probe = probe = self._probe or loop.run_in_executor(self._worker, step, seconds)
        if not (await asyncio.wait((probe,), timeout=PROBE_HANGS_S))[0]:
            self.host.monitor.report_hang(PROBE_HANGS_S)
            return True
        self._probe = None
        return probe.result()

    async def _watch_machine(self) -> None:
        if await self._probe_machine(PROBE_STEP_S):
            await self.advertiser.renew()

    async def _compare(self) -> None:
        self._compared = time.monotonic()
        await self.wakeups.compare.wait(RECONCILE_EVERY_S)
        try:
            async with asyncio.timeout(ROUND_WITHIN_S):
                again = await self.reconciler.round()
                await self.claims.release_ended()
                self._node_metrics.refresh(self.allocation_state)
        except TimeoutError as error:
            raise TimeoutError(
                f"comparing took more than {ROUND_WITHIN_S:g} s, and is retried"
            ) from error
        if again:
            asyncio.get_running_loop().call_later(AGAIN_S, self.wakeups.compare.wish)
        await asyncio.sleep(RECONCILE_APART_S)

    async def _publish_status(self) -> None:
        await self.wakeups.publish.wait(PUBLISH_EVERY_S)
        state, node = self.allocation_state, self.allocation_state.node
        # The inventory of the previous agent is overwritten only once it has been read.
        if node is None or state.saved_mode is None or not self.records.store.mine:
            return
        left = self.hand_over.left(node)
        if left:
            asyncio.get_running_loop().call_later(left, self.wakeups.publish.wish)
        seen = self.host.machine()
        await self.slices.publish(seen.machine)
        problem = self.host.mps_problem(state.node_config.mode)
        wanted = wanted_status(state, seen, problem, self.slices.condition(), opened=left == 0)
        try:
            written = await publish_status(self.cluster, node, wanted, datetime.now(UTC))
        except KubeError:
            self.wakeups.publish.wish()
            raise
        self._published = True
        if written:
            await asyncio.sleep(RECONCILE_APART_S)
