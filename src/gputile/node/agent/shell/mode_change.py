"""Renews what the node advertises, and changes its mode once no pod can be on its way to it."""

import asyncio
import logging

from gputile.kube.errors import KubeError
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.decisions.advertising.advertise import (
    empty_in,
    enlarges,
    has_unknown_holders,
    put_in_force,
    renew,
)
from gputile.node.agent.decisions.events import MachineSeen, PodAnswered
from gputile.node.agent.decisions.news import take_in
from gputile.node.agent.shell.executor import Executor
from gputile.node.agent.shell.surroundings import Surroundings
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.listing import Listing
from gputile.node.agent.wakeup import Wakeups

log = logging.getLogger(__name__)


class ModeChange:
    """The steps of a change of mode: closed to new pods for ``closed_for`` seconds, then changed."""

    def __init__(
        self,
        state: AllocationState,
        surroundings: Surroundings,
        executor: Executor,
        cluster: NodeApi,
        wakeups: Wakeups,
        closed_for: float,
    ) -> None:
        self.closed_for = closed_for
        self._state = state
        self._surroundings = surroundings
        self._executor = executor
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
        around = self._surroundings.around(self._state.advertised.decided.effective_mode.mode)
        self._executor.execute(renew(self._state, seen, around))

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
            take_in(self._state, PodAnswered(pod))
