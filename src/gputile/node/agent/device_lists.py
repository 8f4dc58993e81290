"""Lists the device IDs of each resource: those of the mode in force, and none for all others (M2).

If a plugin is registered without devices, the kubelet reports the resource as 0, which
distinguishes "not in this mode" from "unknown on this node". Devices have no topology hints: with
them, the kubelet's Topology Manager would restrict the choice to a NUMA node, and so could
contradict the GPU that the scheduler booked.

Pods that are bound here and not yet admitted need memory IDs too. If all pods have the same unit,
free IDs serve for them. A pod with another unit than the one in force requests a different number
of IDs for the same MiB, so its IDs are listed separately until it has them, like IDs that pods
hold.

How many memory IDs are listed:

The kubelet counts IDs and the ledger counts MiB. As long as the unit does not change, the two
agree: a GPU of M MiB has floor(M / u) IDs, and a pod that requests k units holds k of them. When
the unit changes under running pods, an allocated ID keeps the worth that it had when it was
allocated, so the number of listed IDs has to change:

* The IDs that pods hold stay listed and healthy. The kubelet keeps them in its checkpoint, and
  after a reboot it refuses to restart a pod if one of its IDs is no longer healthy
  (``devicesToAllocate`` in its device manager).
* In addition exactly ``floor(M / u) - ceil(held / u)`` free IDs are listed, where ``held`` is the
  MiB that the pods on the GPU hold, each ID at the unit of its own pod. So the free IDs are never
  worth more than the MiB that are left: ``held + free * u <= M``.
* The bookings of pods with other units that the kubelet has not admitted yet count as held, in MiB
  and in the number of IDs (``device_lists.expected_memory``): so many more IDs are listed, and the
  kubelet chooses among them.
* The node's allocatable is held IDs + free IDs, and kube-scheduler subtracts the requests of the
  pods, which are the held IDs. What it sees as free is exactly the free IDs.
* Which IDs are listed as free is arbitrary, since their numbers have no meaning. They are the
  lowest that no pod holds: with a single unit these are always the numbers below ``floor(M / u)``,
  and allocating or releasing an ID does not change the others.

It does no harm if the kubelet allocates a free ID at the moment when it is withdrawn: admission
checks MiB, not IDs. The number of listed IDs never exceeds that of the smallest unit in use, so the
message limit holds too.
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

# The kubelet dials plugins with gRPC's default limit on received messages; a margin is left for the
# stream's framing.
MESSAGE_LIMIT = 4 * MIB - 4096
_HEALTH = len("Unhealthy")


class UnitError(ValueError):
    """The memory unit cannot be used on this node; the text names the smallest valid one."""


def free_units(total_mib: int, unit_mib: int, held_mib: int) -> int:
    """Return how many units of a GPU of ``total_mib`` are free if pods hold ``held_mib``."""
    return max(0, total_mib // unit_mib - -(-held_mib // unit_mib))


def free_ids(uuid: str, held: Set[str], free: int) -> Iterator[str]:
    """Yield ``free`` IDs of the GPU: the lowest that are not in ``held``."""
    return islice(
        filterfalse(held.__contains__, (part_id(uuid, number) for number in count())), free
    )


def message_bytes(gpus: Iterable[Gpu], unit_mib: int) -> int:
    """Return the maximum size of a ListAndWatch message for ``gpus``, in bytes of protobuf.

    The message is largest if all IDs are unhealthy.
    """
    size = 0
    for gpu in gpus:
        units = advertised_units(gpu, unit_mib)
        # Both fields and the Device around them have a tag and a length of one byte each: lengths
        # are below 128.
        size += units * (6 + len(part_id(gpu.uuid, max(0, units - 1))) + _HEALTH)
    return size


def check_unit(gpus: tuple[Gpu, ...], unit_mib: int) -> None:
    """Check that the kubelet can receive the device IDs of a memory unit in one message (U2).

    Raises:
        UnitError: the message would be too long; the text names the smallest unit that is valid
            here.
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
        f"a memory unit of {unit_mib} MiB gives the kubelet more device IDs than it takes in one "
        f"message; the smallest valid unit on this node is {low} MiB"
    )


NONE = ExpectedMemory()


def expected_memory(
    pods: Iterable[KnownPod], device_table: DeviceTable, unit_mib: int
) -> Mapping[str, ExpectedMemory]:
    """Return the memory that ``pods`` with other units have yet to receive, by GPU UUID.

    Other units are those that differ from ``unit_mib``.
    """
    found: dict[str, ExpectedMemory] = {}
    for pod in pods:
        request = pod.request
        if pod.alive and request is not None and request.unit_mib not in (0, unit_mib):
            for uuid, ids in _lacking(pod, request.unit_mib, device_table.get(pod.uid)):
                before = found.get(uuid, NONE)
                found[uuid] = ExpectedMemory(before.ids + ids, before.mib + ids * request.unit_mib)
    return found


def _lacking(pod: KnownPod, unit_mib: int, held: PodDevices | None) -> list[tuple[str, int]]:
    """Return the number of IDs that the pod still lacks on each booked GPU.

    The list is empty if the kubelet chose other GPUs.
    """
    booked = (
        {share.uuid: share.mib // unit_mib for share in pod.allocation.gpus}
        if pod.allocation
        else {}
    )
    ids_by_gpu = held.ids_by_gpu.get(GPU_MEMORY, EMPTY) if held else EMPTY
    there = {uuid: len(ids) for uuid, ids in ids_by_gpu.items()}
    if not there.keys() <= booked.keys():
        return []
    return [
        (uuid, ids - there.get(uuid, 0)) for uuid, ids in booked.items() if ids > there.get(uuid, 0)
    ]


Device = tuple[str, bool]


def devices(
    node_config: NodeConfig,
    device_table: DeviceTable,
    expected: Mapping[str, ExpectedMemory],
    resource: str,
) -> tuple[Device, ...]:
    """Return the IDs of ``resource`` in order, each with its health.

    The kubelet allocates healthy IDs only. ``expected`` is the memory of each GPU that pods with
    other units have yet to receive, see ``expected_memory``.
    """
    if not node_config.advertises(resource):
        return ()
    if resource.startswith(MIG_PREFIX):
        return tuple((i.uuid, i.healthy) for i in node_config.instances if i.resource == resource)
    return tuple(
        (device_id, gpu.healthy)
        for gpu in node_config.inventory.gpus
        for device_id in _ids(
            node_config, device_table, expected.get(gpu.uuid, NONE), resource, gpu
        )
    )


def _ids(
    node_config: NodeConfig,
    device_table: DeviceTable,
    expected: ExpectedMemory,
    resource: str,
    gpu: Gpu,
) -> list[str]:
    if resource == GPU_MEMORY:
        held = device_table.ids(resource, gpu.uuid)
        taken = device_table.mib(gpu.uuid) + expected.mib
        free = free_units(gpu.mib, node_config.effective_mode.unit_mib, taken) + expected.ids
        lowest = _numbered(gpu, len(held) + free)
        return (
            lowest
            if held.issubset(lowest)
            else in_order(held.union(free_ids(gpu.uuid, held, free)))
        )
    if resource == GPU_CORE:
        return _numbered(gpu, CORE_PERCENT)
    return (
        _numbered(gpu, node_config.effective_mode.replicas)
        if node_config.replicated
        else [gpu.uuid]
    )


def _numbered(gpu: Gpu, parts: int) -> list[str]:
    return [part_id(gpu.uuid, number) for number in range(parts)]
