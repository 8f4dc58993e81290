"""Runs the loops of a node that keep machine, kubelet and API server in step."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from gputile.kube.errors import KubeError
from gputile.node.agent.cluster.informer import NodeInformer
from gputile.node.agent.cluster.node_status import tell_node
from gputile.node.agent.decisions.publishing.published import wanted_status
from gputile.node.agent.parts import AgentParts
from gputile.support.metrics import LoopLag

log = logging.getLogger(__name__)

SYNC_WITHIN_S = 2.0  # how long registration waits for the API server's pods; admission asks for single ones later
RECONCILE_EVERY_S = 10.0
RECONCILE_APART_S = 0.3
ROUND_WITHIN_S = 40.0  # the gateway ends an agent that has asked it nothing for 90 s
AGAIN_S = 1.0  # after a pod has changed while it was being corrected
PROBE_STEP_S = 5.0
LAG_EVERY_S = 1.0  # four looks a second would be a quarter of what an idle agent costs
TELL_EVERY_S = 60.0
QUIET_FOR_S = 120.0


class Agent:
    """One node's agent: the loops over its ``parts``. Feed ``news`` from the API server; ``run`` until cancelled."""

    def __init__(self, parts: AgentParts) -> None:
        self.parts = parts
        self.news = NodeInformer(parts.allocation_state, parts.wakeups, parts.host.node_name)
        self._lag = LoopLag("agent", every=LAG_EVERY_S)
        parts.monitoring.metrics.registry.register(self._lag.seconds)
        self._worker = ThreadPoolExecutor(1, "gpu-probe")
        self._compared = time.monotonic()
        self._told = False

    # -- what probes ask, from any thread

    def not_healthy(self) -> str | None:
        """Return why the process should be started again, None if it should not."""
        quiet = time.monotonic() - max(self._compared, self.parts.steps.hand_over.looked)
        return f"nothing has been compared for {quiet:.0f} s" if quiet > QUIET_FOR_S else None

    def not_ready(self) -> str | None:
        """Return why the node is not served yet, None if it is."""
        if not self.parts.links.kubelet.registered.is_set():
            return "the kubelet has not taken the device plugins"
        return None if self._told else "the node has not been told what it offers"

    # -- loops

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            ExceptionGroup: of a ``GatewayGoneError`` when the gateway has hung up.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lag.run())
                tasks.create_task(self.parts.links.kubelet.run(self.parts.steps.handler))
                await self._begin()
                tasks.create_task(self._open())
                tasks.create_task(self._forever(self._watch_machine))
                tasks.create_task(self._forever(self._compare))
                tasks.create_task(self._forever(self._tell_node))
        finally:
            # After the step under way, which waits on what this frees.
            self._worker.submit(self.parts.host.monitor.close)
            self._worker.shutdown(wait=False)
            await self.parts.links.arbiter.stop()
            await self.parts.host.mps.stop()

    async def _begin(self) -> None:
        """Look around, and take the node over from the agent before."""
        await self._look_at_machine(0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_WITHIN_S):
                await self.news.pods_listed.wait()
                await self.news.node_seen.wait()
        await self.parts.links.kubelet.told.wait()
        await self.parts.steps.hand_over.close()
        await self.parts.links.kubelet.take_charge()
        self.parts.monitoring.metrics.agents_started = self.parts.links.kubelet.state.starts
        self.parts.links.records.take_over(self.parts.allocation_state)
        self.parts.links.records.recover(self.parts.allocation_state)
        await self.parts.steps.mode.renew()

    async def _open(self) -> None:
        """Let the node take pods again, if it has been closed for this agent to take over."""
        await self.parts.steps.hand_over.open()
        self.parts.wakeups.publish.wish()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (KubeError, OSError) as error:
                log.warning("%s", error)
                await asyncio.sleep(1.0)

    async def _look_at_machine(self, seconds: float) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.parts.host.monitor.step, seconds)

    async def _watch_machine(self) -> None:
        if await self._look_at_machine(PROBE_STEP_S):
            await self.parts.steps.mode.renew()
        take = functools.partial(self.parts.monitoring.usage_hour.take_if_due, int(time.time()), time.monotonic())
        await asyncio.get_running_loop().run_in_executor(self._worker, take)

    async def _compare(self) -> None:
        self._compared = time.monotonic()
        await self.parts.wakeups.compare.wait(RECONCILE_EVERY_S)
        try:
            async with asyncio.timeout(ROUND_WITHIN_S):
                again = await self.parts.steps.reconciler.round(synced=self.news.pods_listed.is_set())
                self.parts.monitoring.snapshots.refresh()
        except TimeoutError as error:
            raise TimeoutError(f"comparing took more than {ROUND_WITHIN_S:g} s, and begins anew") from error
        if again:
            asyncio.get_running_loop().call_later(AGAIN_S, self.parts.wakeups.compare.wish)
        await asyncio.sleep(RECONCILE_APART_S)

    async def _tell_node(self) -> None:
        await self.parts.wakeups.publish.wait(TELL_EVERY_S)
        parts, state = self.parts, self.parts.allocation_state
        node, links = state.node, parts.links
        if node is None or not links.records.store.mine:
            return
        left = parts.steps.hand_over.left(node)
        if left:
            asyncio.get_running_loop().call_later(left, self.parts.wakeups.publish.wish)
        problem = links.surroundings.mps_problem(state.advertised.decided.effective_mode.mode)
        wanted = wanted_status(state, links.surroundings.machine(), problem, opened=left == 0)
        try:
            told = await tell_node(links.cluster, node, wanted, datetime.now(UTC))
        except KubeError:
            self.parts.wakeups.publish.wish()
            raise
        self._told = True
        if told:
            await asyncio.sleep(RECONCILE_APART_S)
