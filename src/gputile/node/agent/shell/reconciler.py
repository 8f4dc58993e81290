"""Runs the rounds of comparing: asks the kubelet, and carries out what is decided.

A correction that fails turns up again the next time.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from gputile.api.core import ObjectReference
from gputile.api.reasons import EventReason
from gputile.kube.errors import Conflict, KubeError
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.decisions.reconciliation.differences import (
    Annotations,
    Complain,
    Confirm,
    Correct,
    Correction,
    Release,
)
from gputile.node.agent.decisions.reconciliation.rounds import PodsListed, Reconciliation
from gputile.node.agent.files.records import Records
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.shell.executor import Executor
from gputile.node.agent.shell.mode_change import ModeChange
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import Listing
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.known_pods import KnownPod, answered_pod
from gputile.node.agent.status.call_metrics import AgentMetrics

log = logging.getLogger(__name__)

AT_ONCE = 4


class CorrectionWriter:
    """Writes corrections to the API server, a few at a time."""

    def __init__(self, cluster: NodeApi, metrics: AgentMetrics, allocation_state: AllocationState) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._allocation_state = allocation_state
        self._free = asyncio.Semaphore(AT_ONCE)

    async def carry_out(self, found: Iterable[Correction]) -> bool:
        """Carry out all corrections; return whether one failed for now, as its pod has changed."""
        again = any(await asyncio.gather(*(self._one(correction) for correction in found)))
        self._metrics.pods_with_devices.set(len(self._allocation_state.device_table))
        return again

    async def _one(self, correction: Correction) -> bool:
        try:
            await self._do(correction)
        except KubeError as error:
            return isinstance(error, Conflict)
        return False

    async def _do(self, correction: Correction) -> None:
        match correction:
            case Release(uid):
                if (pod_devices := self._allocation_state.device_table.get(uid)) is not None:
                    self._allocation_state.device_table.apply(DeviceEvent.POD_GONE, pod_devices)
            case Complain(pod, reason, message):
                self._cluster.record(_reference(pod), reason, message, "Warning")
            case Confirm(pod, annotations):
                await self._annotate(pod, annotations)
            case Correct(pod, annotations, booked, found):
                await self._annotate(pod, annotations)
                if pod.allocation is None:
                    self._metrics.placed.inc()
                    text = f"the pod was bound without an allocation and is on {found}"
                    self._cluster.record(_reference(pod), EventReason.ALLOCATION_RECORDED, text)
                elif booked != found:
                    self._metrics.corrections.inc()
                    text = f"the kubelet put the pod on {found}, booked was {booked}; the booking was corrected"
                    self._cluster.record(_reference(pod), EventReason.GPU_BOOKING_CORRECTED, text, "Warning")
                    log.warning("pod %s: %s", pod.key, text)

    async def _annotate(self, pod: KnownPod, annotations: Annotations) -> None:
        async with self._free:
            try:
                changed = await self._cluster.annotate(pod.pod, annotations)
            except KubeError as error:
                log.info("pod %s is not annotated: %s", pod.key, error)
                raise
        answered_pod(self._allocation_state.pods, changed, self._allocation_state.configuration)


def _reference(pod: KnownPod) -> ObjectReference:
    meta = pod.pod.metadata
    return ObjectReference(api_version="v1", kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid)


LIST_WITHIN_S = 2.0


class Reconciler:
    """Compares, and puts right what differs."""

    def __init__(
        self,
        state: AllocationState,
        kubelet: KubeletLink,
        records: Records,
        writer: CorrectionWriter,
        mode: ModeChange,
        executor: Executor,
    ) -> None:
        self._state = state
        self._kubelet = kubelet
        self._records = records
        self._store = records.store
        self._writer = writer
        self._mode = mode
        self._executor = executor
        self._reconciliation = Reconciliation(state)

    async def round(self, *, synced: bool) -> bool:
        """Compare once, with the API server's pods complete if ``synced``; return whether another round should follow.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        try:
            event = await self._listed(synced=synced)
            if event is None or (found := self._reconciliation.listed(event)) is None:
                return False
            return await self._put_right(found, event.listing, synced=synced)
        except BaseException:  # one that is cancelled, too, has not been executed
            self._reconciliation.failed()
            raise

    async def _listed(self, *, synced: bool) -> PodsListed | None:
        """Return what the kubelet lists, once the state has all that it is compared with; None where it lists nothing.

        The kubelet's checkpoint tells whose devices are that nobody knew, so that they are no difference.
        """
        await self._kubelet.until_quiet()
        self._executor.execute(self._reconciliation.share_time(mine=self._store.mine))
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return None
        await self._mode.renew(listing)
        if self._kubelet.registered.is_set():
            self._records.recover(self._state)
        if listing is None:
            return None
        epoch, settled, started = self._kubelet.state.epoch, self._kubelet.settled, self._store.started()
        return PodsListed(listing, epoch, settled, started, synced, time.monotonic(), time.time_ns())

    async def _put_right(self, found: list[Correction], listing: Listing, *, synced: bool) -> bool:
        """Carry out what differs, and what follows; return whether a pod has changed since."""
        conflict = await self._writer.carry_out(found)
        followed = self._reconciliation.corrected(mine=self._store.mine)
        self._executor.execute(followed)
        if followed:
            await self._mode.renew(listing)
        self._executor.execute(self._reconciliation.tidied(synced=synced))
        return conflict
