"""Renews what the node advertises, and changes its mode once no pod can be on its way to it."""

import asyncio
import logging
from pathlib import Path

from gputile.api.well_known import Mode
from gputile.core.devices.gpu_health import Health, HealthState
from gputile.kube.errors import KubeError
from gputile.node.agent.advertise import (
    Advertiser,
    empty_in,
    enlarges,
    has_unknown_holders,
    put_in_force,
)
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.cluster.informer import Wakeups
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.node_resources import SOCKET_PATTERNS, MachineSeen
from gputile.node.gateway.link import answers
from gputile.node.nvml.gpu_monitor import GpuMonitor


class Surroundings:
    """What is on the node. ``device_plugins`` is the kubelet's directory of plugins' sockets."""

    def __init__(self, monitor: GpuMonitor, mps: MpsDaemons, device_plugins: Path) -> None:
        self._monitor = monitor
        self._mps = mps
        self._device_plugins = device_plugins

    def machine(self, *, free: bool = False, keep_unit: bool = False) -> MachineSeen:
        """Return what was last seen of the GPUs, and what is to be done with them by then; see ``MachineSeen``.

        A GPU whose MPS control daemon does not run is as unhealthy as any other that no pod can use.
        """
        seen = self._monitor.seen
        idle = {
            uuid: HealthState(healthy=False, reason=f"its MPS control daemon does not run: {why}")
            for uuid, why in self._mps.without_daemon.items()
            if seen.health.healthy(uuid)
        }
        health = Health({**seen.health.conditions, **idle}) if idle else seen.health
        return MachineSeen(seen.machine, health, free=free, keep_unit=keep_unit)

    def other_plugins(self) -> list[str]:
        """Return the names of the sockets at which other device plugins answer."""
        found = (path for pattern in SOCKET_PATTERNS for path in self._device_plugins.glob(pattern))
        return [path.name for path in found if answers(path)]

    def mps_problem(self, mode: Mode) -> str | None:
        return self._mps.problem if mode is Mode.MPS else None


log = logging.getLogger(__name__)


class ModeChange:
    """The steps of a change of mode: closed to new pods for ``closed_for`` seconds, then changed."""

    def __init__(
        self,
        state: AllocationState,
        surroundings: Surroundings,
        advertiser: Advertiser,
        cluster: NodeApi,
        wakeups: Wakeups,
        closed_for: float,
    ) -> None:
        self.closed_for = closed_for
        self._state = state
        self._surroundings = surroundings
        self._advertiser = advertiser
        self._cluster = cluster
        self._wakeups = wakeups

    async def renew(self, listing: Listing | None = None) -> None:
        """Bring what is advertised up to date; change the mode when the node has been closed for long enough.

        The mode is not changed where ``listing``, what the kubelet has just listed, is None, or shows devices of pods
        that nobody knows, such as a static pod without a mirror. A larger unit comes into force when the API server has
        said which pods are bound here: their device IDs stay listed.

        Raises:
            KubeError: the API server does not say which pods are bound here.
        """
        keep_unit = False
        if enlarges(self._state):
            try:
                await self._hear_of_bound_pods()
            except KubeError as error:
                log.warning("a larger memory unit has to wait until all pods that are bound here are known: %s", error)
                keep_unit = True
        self._renew(self._surroundings.machine(keep_unit=keep_unit))
        if await self._emptied(listing):
            self._renew(self._surroundings.machine(free=True))
        self._wakeups.publish.wish()

    def _renew(self, seen: MachineSeen) -> None:
        put_in_force(self._state, seen)
        problem = self._surroundings.mps_problem(self._state.advertised.decided.effective_mode.mode)
        self._advertiser.renew(seen, self._surroundings.other_plugins(), problem)

    async def _emptied(self, listing: Listing | None) -> bool:
        """Return whether no pod can be on its way to a node that is closing, and none that nobody knows is there."""
        loop = asyncio.get_running_loop()
        left = empty_in(self._state, loop.time(), self.closed_for)
        if left is None:
            return False
        if left > 0:
            loop.call_later(left, self._wakeups.compare.wish)
            return False
        if listing is None:
            return False
        await self._hear_of_bound_pods()
        return not has_unknown_holders(self._state, listing)

    async def _hear_of_bound_pods(self) -> None:
        """Take in what was bound so far: the watch may lag behind.

        Raises:
            KubeError: the API server does not say it.
        """
        for pod in await self._cluster.bound_pods():
            answered_pod(self._state.pods, pod, self._state.configuration)
