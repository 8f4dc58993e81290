"""Computes what pods have of the node's GPUs and MIG instances by the kubelet's device IDs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gputile.api.units import MIB
from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.node_config import MigDevice, NodeConfig
from gputile.node.agent.state.pod_devices import EMPTY, PodDevices


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """What pods have of a GPU by the kubelet's device IDs: memory in bytes, percent of compute, and how many pods."""

    memory: int = 0
    percent: int = 0
    pods: int = 0


NOT_BOOKED: Final = GpuHolding()


@dataclass(frozen=True, slots=True)
class GpuHoldings:
    """What is booked of each GPU by its index, and the memory of it in bytes by namespace and index.

    ``instances`` is how many pods have each MIG instance, by its UUID.
    """

    gpus: Mapping[int, GpuHolding] = field(default_factory=lambda: MappingProxyType({}))
    namespaces: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    instances: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


NO_BOOKINGS: Final = GpuHoldings()


def bookings_of(state: AllocationState) -> GpuHoldings:
    """Return what the pods in the state's device table have."""
    gpus: dict[int, GpuHolding] = {}
    namespaces: dict[tuple[str, int], int] = {}
    instances: dict[str, int] = {}
    for devices in state.device_table:
        for index in sorted(devices.indices):
            taken = _taken(state.node_config, devices, index)
            if taken is None:
                continue
            memory, percent = taken[0] * MIB, taken[1]
            before, key = gpus.get(index, NOT_BOOKED), (devices.namespace, index)
            gpus[index] = GpuHolding(before.memory + memory, before.percent + percent, before.pods + 1)
            if devices.identified:
                namespaces[key] = namespaces.get(key, 0) + memory
        for each in instances_of(state.node_config, devices):
            instances[each.uuid] = instances.get(each.uuid, 0) + 1
    return GpuHoldings(gpus, namespaces, instances)


def instances_of(node_config: NodeConfig, devices: PodDevices, container: str = "") -> Iterator[MigDevice]:
    """Yield the MIG instances that a pod has, as far as they are there; with ``container`` that one's alone."""
    ids = {
        (each.resource, device_id)
        for each in devices.devices
        if each.resource.startswith(MIG_PREFIX) and container in ("", each.container)
        for device_id in each.ids
    }
    found = (node_config.instance(*each) for each in sorted(ids))
    return (each for each in found if each is not None)


def _taken(node_config: NodeConfig, devices: PodDevices, index: int) -> tuple[int, int] | None:
    """Return the MiB and the percent of compute that a pod has of a GPU; None where the GPU is not known."""
    gpu = node_config.gpu(index)
    if gpu is None:
        split = any(index in slots for resource, slots in devices.slots.items() if resource.startswith(MIG_PREFIX))
        mib = sum(each.mib for each in instances_of(node_config, devices) if each.index == index)
        return (mib, 0) if split else None
    if index in devices.slots.get(GPU_MEMORY, EMPTY):
        return devices.mib(index), devices.percent(index)
    replicas = max(1, node_config.effective_mode.replicas) if node_config.replicated else 1
    return gpu.mib // replicas, 100 // replicas
