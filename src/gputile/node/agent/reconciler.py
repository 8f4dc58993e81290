"""Compares bookings and devices in rounds, and writes the corrections.

The kubelet may call for devices while a round waits for the API server. So each step uses the state
at the time of the step. A correction that fails is found again in the next round.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Literal

from gputile.api.core import ObjectReference
from gputile.api.well_known import EventReason
from gputile.kube.errors import Conflict, KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.claims.prepare import claim_corrections
from gputile.node.agent.differences import Correction, differences
from gputile.node.agent.holdings import drop_removed
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.metrics import AgentMetrics

log = logging.getLogger(__name__)

# Problems are reported after this time, because the kubelet's list may be older than the pods.
LASTS_S = 5.0
AT_ONCE = 4
LIST_WITHIN_S = 2.0


class Reconciler:
    """Compares devices, the kubelet's list and bookings, and corrects the pods' annotations."""

    def __init__(
        self, advertiser: Advertiser, metrics: AgentMetrics, arbiter: ArbiterProcess
    ) -> None:
        self._advertiser, self._metrics, self._arbiter = advertiser, metrics, arbiter
        self._state, self._kubelet = advertiser.state, advertiser.kubelet
        self._records, self._cluster = advertiser.records, advertiser.cluster
        self._store = advertiser.records.store
        self._writes = asyncio.Semaphore(AT_ONCE)
        # When each problem was first found, by UID and message
        self._since: dict[tuple[str, str], float] = {}

    async def round(self) -> bool:
        """Compare once. Return whether another round should follow soon.

        Raises:
            KubeError: The pods of the node cannot be read.
            OSError: A file cannot be written.
        """
        state, advertiser = self._state, self._advertiser
        await self._kubelet.until_quiet()
        self._arbiter.refresh()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return False
        await advertiser.renew(listing)
        state.record_listing(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        if self._kubelet.registered.is_set():
            self._records.read(state, time.time_ns())
        if listing is None:
            return False
        found = [*differences(state, listing, time.time_ns()), *claim_corrections(state)]
        lasting = self._lasting(found, time.monotonic())
        conflict = any(await asyncio.gather(*(self._carry_out(each) for each in lasting)))
        self._metrics.pods_with_devices.set(len(state.device_table))
        self._records.read(state, time.time_ns())
        self._arbiter.refresh()
        advertiser.advertise()
        await advertiser.renew(listing)
        if state.pods.listed and state.listing_complete and self._store.mine:
            # The containers of deleted pods cannot run any more. The watch may not have reported
            # a pod yet that the kubelet lists.
            listed = {name for name, record in state.records.items() if record.key in listing}
            alive = {pod.uid for pod in state.pods.values() if pod.alive}
            kept = self._store.remove_except(state.directories() | listed, alive)
            drop_removed(state, kept, time.time_ns())
        return conflict

    def _lasting(self, found: Iterable[Correction], now: float) -> list[Correction]:
        """Return all corrections, except problems that have lasted for less than ``LASTS_S``."""
        before, self._since = self._since, {}
        lasting: list[Correction] = []
        for each in found:
            if not each.annotations:
                key = each.pod.uid, each.message
                self._since[key] = before.get(key, now)
                if now - self._since[key] < LASTS_S:
                    continue
            lasting.append(each)
        return lasting

    async def _carry_out(self, correction: Correction) -> bool:
        """Write a correction to the API server. Return True after a conflict with another write."""
        pod, state = correction.pod, self._state
        if correction.annotations:
            try:
                async with self._writes:
                    changed = await self._cluster.annotate(pod.pod, correction.annotations)
            except KubeError as error:
                log.info("pod %s is not annotated: %s", pod.key, error)
                return isinstance(error, Conflict)
            answered_pod(state.pods, changed, state.configuration)
        if correction.reason is None:
            return False
        kind: Literal["Normal", "Warning"] = "Warning"
        if correction.reason is EventReason.ALLOCATION_RECORDED:
            self._metrics.placed.inc()
            kind = "Normal"
        elif correction.reason is EventReason.GPU_BOOKING_CORRECTED:
            self._metrics.corrections.inc()
            log.warning("pod %s: %s", pod.key, correction.message)
        meta = pod.pod.metadata
        about = ObjectReference(
            api_version="v1", kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid
        )
        self._cluster.record(about, correction.reason, correction.message, kind)
        return False
