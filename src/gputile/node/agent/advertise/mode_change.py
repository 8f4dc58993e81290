"""Brings what the node offers up to date, and changes its mode once no pod can be on its way to it."""

import asyncio
from dataclasses import dataclass, field

from gputile.node.agent.advertise.advertised_state import AdvertisedState
from gputile.node.agent.allocate.pod_cache import answered_pod
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.host import GpuMonitor
from gputile.node.agent.wakeup import Wakeup


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Wakes the agent's loops: ``compare`` the one that compares, ``publish`` the one that writes the node's offer."""

    compare: Wakeup = field(default_factory=Wakeup)
    publish: Wakeup = field(default_factory=Wakeup)


class ModeChange:
    """The steps of a change of mode: closed to new pods for ``closed_for`` seconds, then changed."""

    def __init__(
        self, advertised: AdvertisedState, monitor: GpuMonitor, cluster: NodeApi, wakeups: Wakeups, closed_for: float
    ) -> None:
        self.advertised = advertised
        self._monitor = monitor
        self._cluster = cluster
        self._wakeups = wakeups
        self.closed_for = closed_for
        self._closed_since: float | None = None

    async def renew(self) -> None:
        """Bring the offer up to date; change the mode when the node has been closed for long enough.

        Raises:
            KubeError: the API server does not say which pods are bound here.
        """
        await self.advertised.renew(self._monitor.seen)
        if await self._emptied():
            await self.advertised.renew(self._monitor.seen, free=True)
        self._wakeups.publish.wish()

    async def _emptied(self) -> bool:
        """Return whether no pod can be on its way to a node that is closing."""
        state = self.advertised.allocation_state
        if not self.advertised.plan.closing or state.node is None or not self.advertised.shut(state.node):
            self._closed_since = None
            return False
        loop = asyncio.get_running_loop()
        if self._closed_since is None:
            self._closed_since = loop.time()
            loop.call_later(self.closed_for, self._wakeups.compare.wish)
        if loop.time() - self._closed_since < self.closed_for:
            return False
        # The watch may lag behind what was bound while the node closed.
        for pod in await self._cluster.bound_pods():
            answered_pod(state.pods, pod, state.configuration)
        return True
