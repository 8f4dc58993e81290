"""Computes the device IDs of memory for pods that are bound here and not yet admitted.

With one unit these are among the free ones. A pod of another unit than the one in force asks for another number of IDs
than its bytes make free ones, so its own have to be offered until it has them, as those are that pods hold.
"""

from collections.abc import Iterable, Mapping

from gputile.api.well_known import GPU_MEMORY
from gputile.node.agent.state.advertised import ExpectedMemory
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import KnownPod
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
