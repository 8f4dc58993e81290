"""Lists the device IDs of each resource: those of the mode in force, and none for all others (M2).

A plugin that is registered without devices makes the kubelet report the resource as 0, which tells "not in this mode"
from "nobody here knows this resource". Topology hints are not given: the kubelet's Topology Manager would otherwise
restrict the choice to a NUMA node and so contradict the GPU that the scheduler booked.

Pods that are bound here and not yet admitted need IDs of memory too. With one unit these are among the free ones. A pod
of another unit than the one in force asks for another number of IDs than its bytes make free ones, so its own have to
be offered until it has them, as those are that pods hold.

How many IDs of memory are listed:

The kubelet counts IDs and the ledger counts MiB. While the unit never changes the two are the same: a GPU of M MiB
has floor(M / u) IDs, and a pod that asks k units holds k of them. When the unit changes under running pods, a held ID
is worth what it was worth when it was given, and the number of IDs listed has to give way:

* The IDs that pods hold stay listed and healthy. The kubelet keeps them in its checkpoint and refuses to start a pod
  again after a reboot if one of them is not healthy any more (``devicesToAllocate`` in its device manager).
* Beside them exactly ``floor(M / u) - ceil(held / u)`` free IDs are listed, where ``held`` is the MiB that the pods on
  the GPU hold, each ID at the unit of its own pod. Free IDs times the unit is then never more than the MiB left over:
  ``held + free * u <= M``.
* What is booked for pods of other units that the kubelet has yet to admit counts as held, in MiB and in the number of
  IDs (``device_lists.expected_memory``): as many more are listed, and the kubelet chooses which.
* The node's allocatable is held IDs + free IDs, and kube-scheduler subtracts the requests of the pods, which are the
  held IDs: what it sees as free is exactly the free IDs.
* Which IDs are free is arbitrary, their numbers being names. The lowest that nobody holds are taken: with one unit
  these are always the numbers below ``floor(M / u)``, and giving one away or back moves no other.

A free ID that the kubelet gives away at the very moment when it stops being offered does no harm: admission checks MiB,
not names. The number of listed IDs never exceeds that of the smallest unit in use, so the message limit holds too.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import count, filterfalse, islice

from gputile.api.quantity import MIB
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, SMALLEST_UNIT_MIB
from gputile.core.devices.inventory import CORE_PERCENT, Gpu, advertised_units
from gputile.node.agent.allocation_state import ExpectedMemory
from gputile.node.agent.device_table import EMPTY, DeviceTable, PodDevices, in_order, part_id
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig

# The kubelet dials plugins with gRPC's default limit on received messages; a margin is left for the stream's framing.
MESSAGE_LIMIT = 4 * MIB - 4096
_HEALTH = len("Unhealthy")


class UnitError(ValueError):
    """The memory unit cannot be used on this node; the text names the smallest that can."""


def free_units(total_mib: int, unit_mib: int, held_mib: int) -> int:
    """Return how many units can still be given away on a GPU of ``total_mib`` of which ``held_mib`` are held."""
    return max(0, total_mib // unit_mib - -(-held_mib // unit_mib))


def free_ids(uuid: str, held: Set[str], free: int) -> Iterator[str]:
    """Yield as many IDs of the GPU as are ``free``: the lowest that nobody has."""
    return islice(filterfalse(held.__contains__, (part_id(uuid, number) for number in count())), free)


def message_bytes(gpus: Iterable[Gpu], unit_mib: int) -> int:
    """Return the most bytes of a ListAndWatch message for ``gpus``: in protobuf, with every ID unhealthy."""
    size = 0
    for gpu in gpus:
        units = advertised_units(gpu, unit_mib)
        # Each field has a tag and a length, and so has the Device that holds the two; all lengths are below 128.
        size += units * (6 + len(part_id(gpu.uuid, max(0, units - 1))) + _HEALTH)
    return size


def check_unit(gpus: tuple[Gpu, ...], unit_mib: int) -> None:
    """Refuse a memory unit that would take more device IDs than a kubelet receives (U2).

    Raises:
        UnitError: the message would be too long; the text names the smallest unit that is valid here.
    """
    if unit_mib >= SMALLEST_UNIT_MIB and message_bytes(gpus, unit_mib) <= MESSAGE_LIMIT:
        return
    low, high = SMALLEST_UNIT_MIB, max((gpu.mib for gpu in gpus), default=SMALLEST_UNIT_MIB) + 1
    while low < high:
        middle = (low + high) // 2
        if message_bytes(gpus, middle) <= MESSAGE_LIMIT:
            high = middle
        else:
            low = middle + 1
    raise UnitError(
        f"a memory unit of {unit_mib} MiB gives the kubelet more device IDs than it takes in one message; "
        f"the smallest valid unit on this node is {low} MiB"
    )


NONE = ExpectedMemory()


def expected_memory(pods: Iterable[KnownPod], device_table: DeviceTable, unit_mib: int) -> Mapping[str, ExpectedMemory]:
    """Return what ``pods`` of other units than ``unit_mib`` are still to get of each GPU, by its UUID."""
    found: dict[str, ExpectedMemory] = {}
    for pod in pods:
        request = pod.request
        if pod.alive and request is not None and request.unit_mib not in (0, unit_mib):
            for uuid, ids in _lacking(pod, request.unit_mib, device_table.get(pod.uid)):
                before = found.get(uuid, NONE)
                found[uuid] = ExpectedMemory(before.ids + ids, before.mib + ids * request.unit_mib)
    return found


def _lacking(pod: KnownPod, unit_mib: int, held: PodDevices | None) -> list[tuple[str, int]]:
    """Return how many IDs of each booked GPU the pod does not hold yet; none where the kubelet has put it elsewhere."""
    booked = {share.uuid: share.mib // unit_mib for share in pod.allocation.gpus} if pod.allocation else {}
    ids_by_gpu = held.ids_by_gpu.get(GPU_MEMORY, EMPTY) if held else EMPTY
    there = {uuid: len(ids) for uuid, ids in ids_by_gpu.items()}
    if not there.keys() <= booked.keys():
        return []
    return [(uuid, ids - there.get(uuid, 0)) for uuid, ids in booked.items() if ids > there.get(uuid, 0)]


Device = tuple[str, bool]


def devices(
    node_config: NodeConfig, device_table: DeviceTable, expected: Mapping[str, ExpectedMemory], resource: str
) -> tuple[Device, ...]:
    """Return the IDs of ``resource`` in their order, each with whether it may be given away.

    ``expected`` is what pods are still to get of each GPU beside what the unit in force makes of the rest.
    """
    if not node_config.advertises(resource):
        return ()
    if resource.startswith(MIG_PREFIX):
        return tuple((i.uuid, i.healthy) for i in node_config.instances if i.resource == resource)
    return tuple(
        (device_id, gpu.healthy)
        for gpu in node_config.inventory.gpus
        for device_id in _ids(node_config, device_table, expected.get(gpu.uuid, NONE), resource, gpu)
    )


def _ids(
    node_config: NodeConfig, device_table: DeviceTable, expected: ExpectedMemory, resource: str, gpu: Gpu
) -> list[str]:
    if resource == GPU_MEMORY:
        held = device_table.ids(resource, gpu.uuid)
        taken = device_table.mib(gpu.uuid) + expected.mib
        free = free_units(gpu.mib, node_config.effective_mode.unit_mib, taken) + expected.ids
        lowest = _numbered(gpu, len(held) + free)
        return lowest if held.issubset(lowest) else in_order(held.union(free_ids(gpu.uuid, held, free)))
    if resource == GPU_CORE:
        return _numbered(gpu, CORE_PERCENT)
    return _numbered(gpu, node_config.effective_mode.replicas) if node_config.replicated else [gpu.uuid]


def _numbered(gpu: Gpu, parts: int) -> list[str]:
    return [part_id(gpu.uuid, number) for number in range(parts)]
