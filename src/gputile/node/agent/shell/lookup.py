"""Reads what a decision needs: the kubelet's list, and the pods that may be asking.

A call holds up every pod of the node and has no deadline in the kubelet, so each request has one here. The agent waits
for the kubelet's list for less than half a second; for three seconds where only the list can tell whose call it is,
since it takes a while on a busy node, but not again if it did not come the last time. The agent waits longer for the
API server, but only for a pod of which nothing else is known: the kubelet keeps for good what such a pod is given.
"""

import asyncio
import logging
import time

from gputile.kube.errors import KubeError
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.decisions.calls.allocation import unclear, unnamed
from gputile.node.agent.decisions.ownership import settle
from gputile.node.agent.files.records import Records
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import Listing
from gputile.node.agent.state.known_pods import answered_pod

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MOST_LOOKUPS = 8


class Lookup:
    """Brings the state up to date before a call is decided. ``latest`` is the last list of the kubelet's.

    ``records`` has what the kubelet has written down.
    """

    def __init__(
        self, state: AllocationState, kubelet: KubeletLink, records: Records, cluster: NodeApi, node: str
    ) -> None:
        self.latest: Listing = {}
        self.records = records
        self._state = state
        self._kubelet = kubelet
        self._cluster = cluster
        self._node = node
        self._answers = True

    async def list(self, within: float = FETCH_WITHIN_S) -> Listing | None:
        listing = await self._kubelet.list(within)
        self._answers = listing is not None
        if listing is not None:
            self.latest = listing
        return listing

    async def look(self, resource: str, size: int) -> Listing | None:
        """Return what the kubelet lists, after reading those pods from the API server that may be the one."""
        needed = self._answers and unnamed(self._state, resource, size)
        listing = await self.list(NEEDED_WITHIN_S if needed else FETCH_WITHIN_S)
        self._state.heard(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        self._settle(listing)
        until = time.monotonic() + PATIENCE_S
        while keys := unclear(self._state, listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read(key) for key in keys))
            self._settle(listing)  # a pod that is known now has what it was answered before under a stand-in
            known = all(key in self._state.pods for key in keys)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        return listing

    def _settle(self, listing: Listing | None) -> None:
        if listing is not None:
            settle(self._state, listing, time.time_ns())

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
            answered_pod(self._state.pods, pod, self._state.configuration)
        return True
