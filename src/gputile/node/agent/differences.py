"""Compares allocated devices with bookings, and returns corrections of the bookings that differ.

The reconciler writes the corrections. A correction that could not be written is returned again by
the next comparison. A pod is compared when all its containers have devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.well_known import GPUSHARE_ASSIGNED, MIG_PREFIX, WHOLE_GPU, EventReason
from gputile.core.devices.allocation import (
    TOOL_ANNOTATIONS,
    Allocation,
    GpuShare,
    binding_annotations,
)
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import ContainerRequest, Phase, RequestKind, effective
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import EMPTY, DeviceTable, ListedPod, Listing, PodDevices
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import MODE_RESOURCES, NodeConfig


@dataclass(frozen=True, slots=True)
class Correction:
    """Annotations to write to a pod, and an event to record if ``reason`` is set.

    Without annotations, the event reports a problem that the agent cannot correct. ``message`` then
    states the remedy.
    """

    pod: KnownPod
    annotations: Mapping[str, str | None]
    reason: EventReason | None = None
    message: str = ""


def allocation_of(
    pod: KnownPod, pod_devices: PodDevices, state: AllocationState, now_ns: int
) -> Allocation | None:
    """Return the booking that matches a pod's devices, or None if there is no such booking.

    MIG instances, pods without a request, and GPUs that are not in the inventory have no booking.
    """
    request, node_config = pod.request, state.node_config
    if request is None or any(
        devices.resource.startswith(MIG_PREFIX) for devices in pod_devices.devices
    ):
        return None
    where = {each.name: _gpus(state, pod, pod_devices, each) for each in request.containers}
    used = frozenset().union(*where.values())
    gpus = node_config.gpus(used)
    if not gpus or len(gpus) != len(used):
        return None
    shared, unit = request.shape.kind is RequestKind.SHARED, pod_devices.unit_mib

    def share(gpu: Gpu, *there: ContainerRequest) -> GpuShare:
        if not shared:
            return GpuShare(gpu.uuid, gpu.index, gpu.mib, 100)
        mib = effective(
            there, lambda container: container.units * unit // len(where[container.name])
        )
        percent = effective(
            there, lambda container: container.percent // len(where[container.name])
        )
        return GpuShare(gpu.uuid, gpu.index, mib, percent)

    on = {
        gpu.uuid: tuple(each for each in request.containers if gpu.uuid in where[each.name])
        for gpu in gpus
    }
    slices = pod_devices.ids_by_gpu.get(WHOLE_GPU, EMPTY) if node_config.replicated else EMPTY
    return Allocation(
        gpus=tuple(
            share(gpu, *on[gpu.uuid])
            for gpu in gpus
            for _ in range(len(slices.get(gpu.uuid, ())) or 1)
        ),
        containers={
            each.name: tuple(share(gpu, each) for gpu in node_config.gpus(where[each.name]))
            for each in request.containers
        },
        unit_mib=unit,
        mode=node_config.mode,
        whole=not shared,
        assumed_ns=pod.allocation.assumed_ns if pod.allocation else now_ns,
    )


def annotations_of(
    allocation: Allocation, node_config: NodeConfig, pod: Pod
) -> dict[str, str | None]:
    """Return the annotations to write for a pod's ``allocation``. None removes an annotation."""
    gpus = node_config.gpus({share.uuid for share in allocation.gpus})
    written = binding_annotations(allocation, gpus, pod)
    if GPUSHARE_ASSIGNED in written:
        written[GPUSHARE_ASSIGNED] = "true"
    return {**dict.fromkeys(TOOL_ANNOTATIONS), **written}


def _gpus(
    state: AllocationState, pod: KnownPod, pod_devices: PodDevices, container: ContainerRequest
) -> frozenset[str]:
    """Return a container's GPUs, or the booked GPUs of an init container whose IDs are lost."""
    if any(devices.container == container.name for devices in pod_devices.devices):
        return state.gpus(pod_devices, container.name, pod)
    booked = frozenset(share.uuid for share in pod.booked(container.name))
    if booked and booked <= pod_devices.gpus:
        return booked
    return frozenset(sorted(pod_devices.gpus)[: container.gpus or pod.shared_gpus])


def differences(state: AllocationState, listing: Listing, now_ns: int) -> list[Correction]:
    """Compare the pods' devices with bookings and the kubelet's list. Return the corrections."""
    found: list[Correction] = []
    for pod in state.pods.values():
        if not pod.alive or pod.request is None:
            continue
        listed = listing.get(pod.key) if pod.pod.status.phase == "Running" else None
        forgotten = _forgotten(pod, listed, state.device_table)
        pod_devices = state.device_table.get(pod.uid)
        if pod_devices is not None and _complete(pod, pod_devices):
            found += _corrected(pod, pod_devices, state, now_ns) + forgotten
        else:
            found += forgotten or _missing(pod, listed)
    return found


def _corrected(
    pod: KnownPod, pod_devices: PodDevices, state: AllocationState, now_ns: int
) -> list[Correction]:
    truth = allocation_of(pod, pod_devices, state, now_ns)
    if truth is None:
        return []
    if (
        pod.allocation is not None
        and pod.allocation.containers == truth.containers
        and len(pod.allocation.gpus) == len(truth.gpus)
    ):
        # Existing tools read this annotation (B9).
        if pod.pod.metadata.annotations.get(GPUSHARE_ASSIGNED) == "false":
            return [Correction(pod, {GPUSHARE_ASSIGNED: "true"})]
        return []
    annotations, where = annotations_of(truth, state.node_config, pod.pod), _gpus_text(truth.gpus)
    if pod.allocation is None:
        text = f"the pod was bound without an allocation and is on {where}"
        return [Correction(pod, annotations, EventReason.ALLOCATION_RECORDED, text)]
    # If the GPUs are the same, only the shares of single containers differ.
    if (booked := _gpus_text(pod.allocation.gpus)) == where:
        return [Correction(pod, annotations)]
    text = f"the kubelet allocated {where} instead of {booked}; the booking is corrected"
    return [Correction(pod, annotations, EventReason.GPU_BOOKING_CORRECTED, text)]


def _complete(pod: KnownPod, pod_devices: PodDevices) -> bool:
    resources = {devices.resource for devices in pod_devices.devices}
    return all(
        pod_devices.container_devices(container.name, resource) is not None
        for container in pod.containers
        for resource in resources
        if container.phase is not Phase.INIT and pod.demand(container, resource)
    )


def _forgotten(
    pod: KnownPod, listed: ListedPod | None, device_table: DeviceTable
) -> list[Correction]:
    """Report containers that run with devices which the kubelet has lost.

    The kubelet loses devices with its checkpoint. It also loses them if it rejects a pod whose
    first containers run, and ends before it has reported the rejection to the API server. The next
    kubelet then adopts these containers (``rejectPod`` in pkg/kubelet).
    """
    if listed is None:
        return []
    names = [
        container.name
        for container in pod.containers
        if container.phase is not Phase.INIT
        and any(
            pod.demand(container, each) and not listed.ids(container.name, each)
            for each in MODE_RESOURCES
        )
        and device_table.runs(pod.uid, container.name)
    ]
    if not names:
        return []
    message = (
        f"the kubelet has lost the GPU allocation of {', '.join(names)}, which still runs but "
        "cannot restart: delete the pod at a convenient time, so that it is admitted again"
    )
    return [Correction(pod, {}, EventReason.GPU_FORGOTTEN, message)]


def _missing(pod: KnownPod, listed: ListedPod | None) -> list[Correction]:
    """Report a pod that runs without devices, because no plugin offered them when it started."""
    if listed is None or any(listed.containers.values()):
        return []
    message = (
        "its containers run without the GPUs that they request: delete the pod so that it is "
        "admitted again"
    )
    return [Correction(pod, {}, EventReason.GPU_MISSING, message)]


def _gpus_text(gpus: Iterable[GpuShare]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus) or "no GPU"
