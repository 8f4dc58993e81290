"""Lists the device IDs of each resource: those of the mode in force, and none for all others (M2).

A plugin that is registered without devices makes the kubelet report the resource as 0, which tells "not in this mode"
from "nobody here knows this resource". Topology hints are not given: the kubelet's Topology Manager would otherwise
restrict the choice to a NUMA node and so contradict the GPU that the scheduler booked.

Pods that are bound here and not yet admitted need IDs of memory too. With one unit these are among the free ones. A pod
of another unit than the one in force asks for another number of IDs than its bytes make free ones, so its own have to
be offered until it has them, as those are that pods hold.
"""

from collections.abc import Iterable, Iterator, Mapping

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.inventory import CORE_PERCENT, Gpu
from gputile.node.agent.decisions.devices.slots import free_slots, free_units
from gputile.node.agent.state.allocation_state import ExpectedMemory
from gputile.node.agent.state.device_ids import encode
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.node_config import NodeConfig
from gputile.node.agent.state.pod_devices import EMPTY, PodDevices

NONE = ExpectedMemory()


def expected_memory(pods: Iterable[KnownPod], device_table: DeviceTable, unit_mib: int) -> Mapping[int, ExpectedMemory]:
    """Return what ``pods`` of other units than ``unit_mib`` are still to get of each GPU, by its index."""
    found: dict[int, ExpectedMemory] = {}
    for pod in pods:
        request = pod.request
        if pod.alive and request is not None and request.unit_mib not in (0, unit_mib):
            for index, ids in _lacking(pod, request.unit_mib, device_table.get(pod.uid)):
                before = found.get(index, NONE)
                found[index] = ExpectedMemory(before.ids + ids, before.mib + ids * request.unit_mib)
    return found


def _lacking(pod: KnownPod, unit_mib: int, held: PodDevices | None) -> list[tuple[int, int]]:
    """Return how many IDs of each booked GPU the pod does not hold yet; none where the kubelet has put it elsewhere."""
    booked = {share.index: share.mib // unit_mib for share in pod.allocation.gpus} if pod.allocation else {}
    slots = held.slots.get(GPU_MEMORY, EMPTY) if held else EMPTY
    there = {index: len(each) for index, each in slots.items()}
    if not there.keys() <= booked.keys():
        return []
    return [(index, ids - there.get(index, 0)) for index, ids in booked.items() if ids > there.get(index, 0)]


Device = tuple[str, bool]


def devices(
    node_config: NodeConfig, device_table: DeviceTable, expected: Mapping[int, ExpectedMemory], resource: str
) -> tuple[Device, ...]:
    """Return the IDs of ``resource`` in their order, each with whether it may be given away.

    ``expected`` is what pods are still to get of each GPU beside what the unit in force makes of the rest.
    """
    if not node_config.advertises(resource):
        return ()
    if resource.startswith(MIG_PREFIX):
        return tuple((i.device_id, i.healthy) for i in node_config.instances if i.resource == resource)
    return tuple(
        (encode(gpu.index, slot), healthy)
        for gpu in node_config.inventory.gpus
        for healthy in [gpu.healthy and not displaced(gpu, device_table)]
        for slot in _slots(node_config, device_table, expected.get(gpu.index, NONE), resource, gpu)
    )


def displaced(gpu: Gpu, device_table: DeviceTable) -> bool:
    """Return whether pods hold IDs of this index that stood for another GPU: after a reboot, when one has gone.

    The GPU is offered again when those pods are gone.
    """
    return any(pod_devices.gpus.get(gpu.index, gpu.uuid) != gpu.uuid for pod_devices in device_table.on(gpu.index))


def _slots(
    node_config: NodeConfig, device_table: DeviceTable, expected: ExpectedMemory, resource: str, gpu: Gpu
) -> Iterator[int]:
    if resource == GPU_MEMORY:
        held = device_table.slots(resource, gpu.index)
        taken = device_table.mib(gpu.index) + expected.mib
        free = free_units(gpu.mib, node_config.effective_mode.unit_mib, taken) + expected.ids
        yield from sorted(held.union(free_slots(held, free)))
    elif resource == GPU_CORE:
        yield from range(CORE_PERCENT)
    else:
        yield from range(node_config.effective_mode.replicas)
