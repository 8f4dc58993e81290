"""The device IDs of each resource: those of the mode in force, and empty lists for all others (M2).

A plugin that is registered without devices makes the kubelet report the resource as 0, which tells "not in this mode"
from "nobody here knows this resource". Topology hints are not given: the kubelet's Topology Manager would otherwise
restrict the choice to a NUMA node and so contradict the GPU that the scheduler booked.
"""

from collections.abc import Iterator

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.advertised import CORE_PERCENT
from gputile.core.devices.inventory import Gpu
from gputile.node.agent.advertise.node_config import NodeConfig
from gputile.node.agent.advertise.slots import free_slots, free_units
from gputile.node.agent.allocate.device_ids import encode
from gputile.node.agent.allocate.device_table import DeviceTable

Device = tuple[str, bool]


def devices(node_config: NodeConfig, device_table: DeviceTable, resource: str) -> tuple[Device, ...]:
    """Return the IDs of ``resource`` in their order, each with whether it may be given away."""
    if not node_config.offers(resource):
        return ()
    if resource.startswith(MIG_PREFIX):
        return tuple((i.device_id, i.healthy) for i in node_config.instances if i.resource == resource)
    return tuple(
        (encode(gpu.index, slot), healthy)
        for gpu in node_config.inventory.gpus
        for healthy in [gpu.healthy and not displaced(gpu, device_table)]
        for slot in _slots(node_config, device_table, resource, gpu)
    )


def displaced(gpu: Gpu, device_table: DeviceTable) -> bool:
    """Return whether pods hold IDs of this index that stood for another GPU: after a reboot, when one has gone.

    The GPU is offered again when those pods are gone.
    """
    return any(pod_devices.gpus.get(gpu.index, gpu.uuid) != gpu.uuid for pod_devices in device_table.on(gpu.index))


def _slots(node_config: NodeConfig, device_table: DeviceTable, resource: str, gpu: Gpu) -> Iterator[int]:
    if resource == GPU_MEMORY:
        held = device_table.slots(resource, gpu.index)
        free = free_units(gpu.mib, node_config.effective_mode.unit_mib, device_table.mib(gpu.index))
        yield from sorted(held.union(free_slots(held, free)))
    elif resource == GPU_CORE:
        yield from range(CORE_PERCENT)
    else:
        yield from range(node_config.effective_mode.replicas)
