"""Carries out what the reconciler found. What fails turns up again the next time."""

import asyncio
import logging
from collections.abc import Iterable

from gputile.api.core import ObjectReference
from gputile.api.reasons import EventReason
from gputile.kube.errors import Conflict, KubeError
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.decisions.events import PodAnswered
from gputile.node.agent.decisions.news import take_in
from gputile.node.agent.decisions.reconciliation.differences import (
    Annotations,
    Complain,
    Confirm,
    Correct,
    Correction,
    Release,
)
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.known_pods import KnownPod
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
        take_in(self._allocation_state, PodAnswered(changed))


def _reference(pod: KnownPod) -> ObjectReference:
    meta = pod.pod.metadata
    return ObjectReference(api_version="v1", kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid)
