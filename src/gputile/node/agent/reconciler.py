"""Compares allocated devices with bookings. If they differ, the booking is corrected.

Corrections are decided on the state as it is after each wait: the API server is waited for in the middle of a round,
and the kubelet may ask for devices meanwhile. One that could not be carried out turns up again the next time. A pod is
judged once all its containers have their devices, an init container's being known from the device table.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gputile.api.core import ObjectReference, Pod
from gputile.api.well_known import GPUSHARE_ASSIGNED, MIG_PREFIX, EventReason
from gputile.core.devices.allocation import TOOL_ANNOTATIONS, Allocation, GpuShare, binding_annotations
from gputile.core.devices.request import ContainerRequest, Phase, RequestKind, effective
from gputile.kube.errors import Conflict, KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.device_table import DeviceTable, Listing, PodDevices, gpus_of
from gputile.node.agent.holdings import keep_only
from gputile.node.agent.known_pods import KnownPod, answered_pod
from gputile.node.agent.node_config import MODE_RESOURCES, NodeConfig
from gputile.node.agent.status.metrics import AgentMetrics

log = logging.getLogger(__name__)

LASTS_S = 5.0  # report only differences that persist this long: list and pods are read at different moments
AT_ONCE = 4
LIST_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Correction:
    """What is to be done about a pod: ``annotations`` to write, if any, and an event, if there is a ``reason``.

    Without annotations it is a complaint of something that cannot be put right from here; ``message`` names the remedy.
    """

    pod: KnownPod
    annotations: Mapping[str, str | None]
    reason: EventReason | None = None
    message: str = ""


class Reconciler:
    """Compares what pods hold, what the kubelet lists and what is booked, and corrects the annotations."""

    def __init__(self, advertiser: Advertiser, metrics: AgentMetrics, arbiter: ArbiterProcess) -> None:
        self._state, self._kubelet, self._records = advertiser.state, advertiser.kubelet, advertiser.records
        self._store, self._cluster = advertiser.records.store, advertiser.cluster
        self._advertiser = advertiser
        self._metrics = metrics
        self._arbiter = arbiter
        self._writes = asyncio.Semaphore(AT_ONCE)
        self._since: dict[tuple[str, str], float] = {}  # when a complaint first came up, by UID and message

    async def round(self) -> bool:
        """Compare once; return whether another round should follow.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        state, advertiser = self._state, self._advertiser
        await self._kubelet.until_quiet()
        await self._arbiter.refresh()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return False
        await advertiser.renew(listing)
        state.record_listing(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        if self._kubelet.registered.is_set():
            self._records.read(state, time.time_ns())
        if listing is None:
            return False
        lasting = self._lasting(differences(state, listing, time.time_ns()), time.monotonic())
        conflict = any(await asyncio.gather(*(self._carry_out(each) for each in lasting)))
        self._metrics.pods_with_devices.set(len(state.device_table))
        self._records.read(state, time.time_ns())
        await self._arbiter.refresh()
        advertiser.advertise()
        await advertiser.renew(listing)
        if state.pods.listed:
            self._tidy()
        return conflict

    def _tidy(self) -> None:
        """Remove the allocation directories of pods that are gone; a container that has none cannot run."""
        alive = {pod.uid for pod in self._state.pods.values() if pod.alive}
        kept = self._store.keep_only(self._state.directories(), alive)
        keep_only(self._state, kept, time.time_ns())

    def _lasting(self, found: Iterable[Correction], now: float) -> list[Correction]:
        """Drop complaints that have not lasted for long enough to be reported."""
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
        """Write a correction to the API server; return whether that failed for now, as the pod has changed."""
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
        meta = pod.pod.metadata
        kind: Literal["Normal", "Warning"] = "Warning"
        if correction.reason is EventReason.ALLOCATION_RECORDED:
            self._metrics.placed.inc()
            kind = "Normal"
        elif correction.reason is EventReason.GPU_BOOKING_CORRECTED:
            self._metrics.corrections.inc()
            log.warning("pod %s: %s", pod.key, correction.message)
        about = ObjectReference(api_version="v1", kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid)
        self._cluster.record(about, correction.reason, correction.message, kind)
        return False


def allocation_of(pod: KnownPod, pod_devices: PodDevices, node_config: NodeConfig, now_ns: int) -> Allocation | None:
    """Return what the ledger should say of ``pod``; None where its GPUs are not those of the inventory."""
    request = pod.request
    if request is None or any(devices.resource.startswith(MIG_PREFIX) for devices in pod_devices.devices):
        return None
    where = {container.name: _gpus(pod, pod_devices, container) for container in request.containers}
    used = frozenset().union(*where.values())
    gpus = node_config.gpus(used)
    if not gpus or len(gpus) != len(used):
        return None
    shared, unit = request.shape.kind is RequestKind.SHARED, pod_devices.unit_mib
    containers: dict[str, tuple[GpuShare, ...]] = {}
    for container in request.containers:
        count = max(1, len(where[container.name]))
        containers[container.name] = tuple(
            GpuShare(gpu.uuid, gpu.index, container.units * unit // count, container.percent // count)
            if shared
            else GpuShare(gpu.uuid, gpu.index, gpu.mib, 100)
            for gpu in node_config.gpus(where[container.name])
        )
    shares = []
    for gpu in gpus:
        if not shared:
            shares.append(GpuShare(gpu.uuid, gpu.index, gpu.mib, 100))
            continue
        there = tuple(container for container in request.containers if gpu.uuid in where[container.name])
        mib = effective(there, lambda container: container.units * unit // max(1, len(where[container.name])))
        percent = effective(there, lambda container: container.percent // max(1, len(where[container.name])))
        shares.append(GpuShare(gpu.uuid, gpu.index, mib, percent))
    return Allocation(
        gpus=tuple(shares),
        containers=containers,
        unit_mib=unit,
        mode=node_config.mode.value,
        whole=not shared,
        assumed_ns=pod.allocation.assumed_ns if pod.allocation else now_ns,
    )


def annotations_of(allocation: Allocation, node_config: NodeConfig, pod: Pod) -> dict[str, str | None]:
    """Return the annotations to write for the ``allocation`` of ``pod``; None for those that must go."""
    gpus = [gpu for share in allocation.gpus if (gpu := node_config.gpu(share.uuid)) is not None]
    written = binding_annotations(allocation, gpus, pod)
    if GPUSHARE_ASSIGNED in written:
        written[GPUSHARE_ASSIGNED] = "true"
    return {**dict.fromkeys(TOOL_ANNOTATIONS), **written}


def _gpus(pod: KnownPod, pod_devices: PodDevices, container: ContainerRequest) -> frozenset[str]:
    """Return the GPUs that a container is on. An init container whose IDs are forgotten was where it was booked."""
    if any(devices.container == container.name for devices in pod_devices.devices):
        return gpus_of(pod_devices, container.name, pod.shared_gpus)
    booked = frozenset(share.uuid for share in pod.booked(container.name))
    if booked and booked <= pod_devices.gpus:
        return booked
    return frozenset(sorted(pod_devices.gpus)[: container.gpus or pod.shared_gpus])


def differences(state: AllocationState, listing: Listing, now_ns: int) -> list[Correction]:
    """Return what differs between what pods hold, what is booked and what the kubelet lists."""
    found: list[Correction] = []
    for pod in state.pods.values():
        if not pod.alive or pod.request is None:
            continue
        forgotten, pod_devices = _forgotten(pod, listing, state.device_table), state.device_table.get(pod.uid)
        if pod_devices is not None and _complete(pod, pod_devices):
            found += _corrected(pod, pod_devices, state.node_config, now_ns) + forgotten
        else:
            found += forgotten or _missing(pod, listing)
    return found


def _corrected(pod: KnownPod, pod_devices: PodDevices, node_config: NodeConfig, now_ns: int) -> list[Correction]:
    truth = allocation_of(pod, pod_devices, node_config, now_ns)
    if truth is None:
        return []
    if pod.allocation is not None and pod.allocation.containers == truth.containers:
        if pod.pod.metadata.annotations.get(GPUSHARE_ASSIGNED) == "false":  # existing tools read it (B9)
            return [Correction(pod, {GPUSHARE_ASSIGNED: "true"})]
        return []
    annotations, where = annotations_of(truth, node_config, pod.pod), _gpus_text(truth.gpus)
    if pod.allocation is None:
        text = f"the pod was bound without an allocation and is on {where}"
        return [Correction(pod, annotations, EventReason.ALLOCATION_RECORDED, text)]
    if (booked := _gpus_text(pod.allocation.gpus)) == where:  # only the parts of its containers differ
        return [Correction(pod, annotations)]
    text = f"the kubelet put the pod on {where}, booked was {booked}; the booking was corrected"
    return [Correction(pod, annotations, EventReason.GPU_BOOKING_CORRECTED, text)]


def _complete(pod: KnownPod, pod_devices: PodDevices) -> bool:
    containers = pod.request.containers if pod.request else ()
    resources = {devices.resource for devices in pod_devices.devices}
    return all(
        pod_devices.container_devices(container.name, resource) is not None
        for container in containers
        for resource in resources
        if container.phase is not Phase.INIT and pod.demand(container, resource)
    )


def _forgotten(pod: KnownPod, listing: Listing, device_table: DeviceTable) -> list[Correction]:
    """Complain of containers that run on with devices that the kubelet has forgotten.

    It has after the loss of its checkpoint, and where one kubelet refuses a pod whose first containers run and dies
    before it has told the API server, so that the next one takes them as they are (``rejectPod`` in pkg/kubelet).
    """
    listed = listing.get(pod.key)
    if pod.pod.status.phase != "Running" or listed is None or pod.request is None:
        return []
    names = [
        container.name
        for container in pod.request.containers
        if container.phase is not Phase.INIT
        and any(pod.demand(container, each) and not listed.ids(container.name, each) for each in MODE_RESOURCES)
        and device_table.runs(pod.uid, container.name)
    ]
    if not names:
        return []
    message = (
        f"the kubelet has forgotten the GPU of {', '.join(names)}, which runs on with it but cannot be started again: "
        "delete the pod when it suits you, so that it is admitted anew"
    )
    return [Correction(pod, {}, EventReason.GPU_FORGOTTEN, message)]


def _missing(pod: KnownPod, listing: Listing) -> list[Correction]:
    """Complain of a pod that runs without devices: it started while nobody offered what it asks for."""
    listed = listing.get(pod.key)
    if pod.pod.status.phase != "Running" or listed is None or any(listed.containers.values()):
        return []
    message = "its containers run without the GPUs that they ask for: delete the pod so that it is admitted again"
    return [Correction(pod, {}, EventReason.GPU_MISSING, message)]


def _gpus_text(gpus: Iterable[GpuShare]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus) or "no GPU"
