"""Touches nodes when GPUs become free, so that kube-scheduler tries refused pods again.

kube-scheduler tries a refused pod again when something in the cluster changes. Its watch may be a moment ahead of
ours: it sees a pod go, asks again at once, and we still see the pod there. It would not ask a third time for
minutes. So whenever GPUs become free soon after a refusal, the node's annotation is touched: an event that
kube-scheduler hears after we have seen the GPUs free.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from gputile.api.well_known import WAKE_ANNOTATION
from gputile.kube.client import Connection
from gputile.kube.errors import KubeError
from gputile.kube.writes import annotate_node

log = logging.getLogger(__name__)

# By how much two watches of one API server may differ; slow watchers are dropped long before.
WATCH_LAG_SECONDS = 30.0
PAUSE_SECONDS = 0.5


class PodRequeuer:
    """Touches nodes, at most one every ``pause`` seconds."""

    def __init__(self, connection: Connection, monotonic: Callable[[], float], *, pause: float = PAUSE_SECONDS) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._pause = pause
        self._last_refusal = float("-inf")
        self._node = ""
        self._wanted = asyncio.Event()
        self.touched = 0

    def refused(self) -> None:
        self._last_refusal = self._monotonic()

    def freed(self, node: str) -> None:
        """Note that GPUs of ``node`` became free, or that it got others."""
        if self._monotonic() - self._last_refusal < WATCH_LAG_SECONDS:
            self._node = node
            self._wanted.set()

    async def run(self) -> NoReturn:
        """Touch a node whenever that is wanted, for ever. One is enough: the event wakes all pods that were refused."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self.touched += 1
            mark = {WAKE_ANNOTATION: str(int(self._monotonic() * 1000))}
            try:
                await annotate_node(self._connection, self._node, mark)
            except KubeError as error:
                log.warning("kube-scheduler could not be woken: %s", error)
            await asyncio.sleep(self._pause)
