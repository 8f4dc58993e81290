"""Computes the right allocation annotation from the device IDs that a pod really has."""

from gputile.api.core import Pod
from gputile.api.well_known import (
    GPUSHARE_ASSIGNED,
    MIG_PREFIX,
)
from gputile.core.devices.allocation import TOOL_ANNOTATIONS, Allocation, Chosen, GpuShare, binding_annotations
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.request import ContainerRequest, RequestKind, effective
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.node_config import NodeConfig
from gputile.node.agent.state.pod_devices import PodDevices, gpus_of


def allocation_of(pod: KnownPod, pod_devices: PodDevices, node_config: NodeConfig, now_ns: int) -> Allocation | None:
    """Return what the ledger should say of ``pod``; None where its GPUs are not those of the inventory."""
    request = pod.request
    if request is None or any(devices.resource.startswith(MIG_PREFIX) for devices in pod_devices.devices):
        return None
    where = {container.name: _indices(pod, pod_devices, container) for container in request.containers}
    used = sorted({index for indices in where.values() for index in indices})
    gpus = {index: gpu for index in used if (gpu := node_config.gpu(index)) is not None}
    if not gpus or len(gpus) != len(used):
        return None
    shared, unit = request.shape.kind is RequestKind.SHARED, pod_devices.unit_mib
    containers: dict[str, tuple[GpuShare, ...]] = {}
    for container in request.containers:
        count = max(1, len(where[container.name]))
        containers[container.name] = tuple(
            GpuShare(gpus[i].uuid, i, container.units * unit // count, container.percent // count)
            if shared
            else GpuShare(gpus[i].uuid, i, gpus[i].mib, 100)
            for i in where[container.name]
        )
    shares = []
    for index, gpu in gpus.items():
        if not shared:
            shares.append(GpuShare(gpu.uuid, index, gpu.mib, 100))
            continue
        there = tuple(container for container in request.containers if index in where[container.name])
        mib = effective(there, lambda container: container.units * unit // max(1, len(where[container.name])))
        percent = effective(there, lambda container: container.percent // max(1, len(where[container.name])))
        shares.append(GpuShare(gpu.uuid, index, mib, percent))
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
    chosen = tuple(
        Chosen(gpu, 0 if allocation.whole else advertised_units(gpu, node_config.effective_mode.unit_mib))
        for share in allocation.gpus
        if (gpu := node_config.gpu(share.index)) is not None
    )
    written = binding_annotations(allocation, chosen, pod)
    if GPUSHARE_ASSIGNED in written:
        written[GPUSHARE_ASSIGNED] = "true"
    return {**dict.fromkeys(TOOL_ANNOTATIONS), **written}


def _indices(pod: KnownPod, pod_devices: PodDevices, container: ContainerRequest) -> tuple[int, ...]:
    """Return the GPUs that a container is on. An init container whose IDs are forgotten was where it was booked."""
    if any(devices.container == container.name for devices in pod_devices.devices):
        return gpus_of(pod_devices, container.name, pod.shared_gpus)
    booked = tuple(share.index for share in pod.booked(container.name))
    if booked and pod_devices.indices.issuperset(booked):
        return booked
    return tuple(sorted(pod_devices.indices))[: container.gpus or pod.shared_gpus]
