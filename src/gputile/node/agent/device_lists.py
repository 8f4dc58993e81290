"""Lists the device IDs of each resource of the mode in force. Other resources have no IDs (M2).

A plugin without devices stays registered, so that the kubelet reports the resource as 0. This
distinguishes "not in this mode" from "unknown on this node". Devices have no topology hints. With
such hints, the kubelet's Topology Manager would restrict the choice to a NUMA node, which may not
have the booked GPU.

Pods that are bound here and not admitted yet need memory IDs too. A pod with the node's unit uses
free IDs. A pod with another unit requests a different number of IDs for the same MiB. So additional
IDs are listed for such a pod until it has its IDs.

How many memory IDs are listed:

The kubelet counts IDs, and the ledger counts MiB. As long as the unit u does not change, the two
agree. A GPU of M MiB has floor(M / u) IDs, and a pod that requests k units has k of them. If the
unit changes while pods run, an allocated ID stands for as many MiB as before. So the number of
listed IDs must change:

* The IDs of pods stay listed and healthy. The kubelet has them in its checkpoint. After a reboot it
  refuses to restart a pod that has an unhealthy ID (``devicesToAllocate`` in its device manager).
* In addition, exactly ``floor(M / u) - ceil(used / u)`` free IDs are listed. ``used`` is the MiB of
  all pods' IDs, in the units of these pods. So the free IDs never stand for more MiB than are left:
  ``used + free * u <= M``.
* Pods with another unit that are booked and not admitted yet also count as used
  (``expected_memory``). For each ID that they request, an additional ID is listed. The kubelet
  chooses among all listed IDs.
* The node's allocatable is the sum of used IDs and free IDs. kube-scheduler subtracts the
  requests of pods, which are the used IDs. So it sees exactly the free IDs.
* The numbers of free IDs have no meaning. The lowest unused numbers are listed. With a single unit
  these are the numbers below ``floor(M / u)``, and allocations do not change the list.

The kubelet may allocate a free ID at the moment when the ID is withdrawn. This does no harm,
because admission checks MiB and not IDs. The number of IDs never exceeds the number for the
smallest unit in use, so the ListAndWatch message is never too long.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from itertools import count, filterfalse, islice

from gputile.api.quantity import MIB
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, SMALLEST_UNIT_MIB
from gputile.core.devices.inventory import CORE_PERCENT, Gpu, advertised_units
from gputile.node.agent.allocation_state import AllocationState, ExpectedMemory
from gputile.node.agent.device_table import EMPTY, DeviceTable, PodDevices, in_order, part_id
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig

# The kubelet receives messages up to gRPC's default limit. A margin is left for the framing.
MESSAGE_LIMIT = 4 * MIB - 4096
_HEALTH = len("Unhealthy")


class UnitError(ValueError):
    """The memory unit cannot be used on this node. The text states the smallest valid unit."""


def free_units(total_mib: int, unit_mib: int, held_mib: int) -> int:
    """Return how many units of a GPU are free if pods use ``held_mib`` of its ``total_mib``."""
    return max(0, total_mib // unit_mib - -(-held_mib // unit_mib))


def free_ids(uuid: str, held: Set[str], free: int) -> Iterator[str]:
    """Yield the ``free`` lowest IDs of the GPU that are not in ``held``."""
    return islice(
        filterfalse(held.__contains__, (part_id(uuid, number) for number in count())), free
    )


def message_bytes(gpus: Iterable[Gpu], unit_mib: int) -> int:
    """Return the largest size of a ListAndWatch message for ``gpus``, in bytes of protobuf.

    The message is largest if all IDs are unhealthy.
    """
    # The Device and its two fields each have a tag and a length of one byte, because all lengths
    # are below 128.
    return sum(
        units * (6 + len(part_id(gpu.uuid, units - 1)) + _HEALTH)
        for gpu in gpus
        if (units := advertised_units(gpu, unit_mib))
    )


def check_unit(gpus: tuple[Gpu, ...], unit_mib: int) -> None:
    """Check that the kubelet can receive the device IDs of a memory unit in one message (U2).

    Raises UnitError if the message would be too long.
    """
    if unit_mib >= SMALLEST_UNIT_MIB and message_bytes(gpus, unit_mib) <= MESSAGE_LIMIT:
        return
    units = range(SMALLEST_UNIT_MIB, max((gpu.mib for gpu in gpus), default=SMALLEST_UNIT_MIB) + 1)
    fits = bisect_left(units, True, key=lambda unit: message_bytes(gpus, unit) <= MESSAGE_LIMIT)
    raise UnitError(
        f"a memory unit of {unit_mib} MiB gives more device IDs than the kubelet accepts in one "
        f"message; the smallest valid unit on this node is {SMALLEST_UNIT_MIB + fits} MiB"
    )


NONE = (0, 0)


def expected_memory(state: AllocationState) -> ExpectedMemory:
    """Return the memory that bound pods still need on each GPU, by UUID.

    Only pods whose memory unit differs from the node's are included.
    """
    found: dict[str, tuple[int, int]] = {}
    unit_mib = state.node_config.effective_mode.unit_mib
    for pod in state.pods.values():
        own = pod.request.unit_mib if pod.alive and pod.request is not None else 0
        if own not in (0, unit_mib):
            for uuid, ids in _lacking(pod, own, state.device_table.get(pod.uid)):
                before, mib = found.get(uuid, NONE)
                found[uuid] = before + ids, mib + ids * own
    return found


def _lacking(pod: KnownPod, unit_mib: int, held: PodDevices | None) -> list[tuple[str, int]]:
    """Return how many IDs of each booked GPU the pod does not have yet.

    The list is empty if the kubelet chose other GPUs.
    """
    shares = pod.allocation.gpus if pod.allocation else ()
    booked = {share.uuid: share.mib // unit_mib for share in shares}
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
    expected: ExpectedMemory,
    resource: str,
) -> tuple[Device, ...]:
    """Return the IDs of ``resource`` in order, each with its health.

    The kubelet allocates only healthy IDs. ``expected`` is the result of ``expected_memory``.
    """
    if not node_config.advertises(resource):
        return ()
    if resource.startswith(MIG_PREFIX):
        return tuple((i.uuid, i.healthy) for i in node_config.instances if i.resource == resource)
    found: list[Device] = []
    for gpu in node_config.inventory.gpus:
        ids = [gpu.uuid]
        if resource == GPU_MEMORY:
            more, mib = expected.get(gpu.uuid, NONE)
            # The kubelet counts IDs, so each ID counts once here (not ``device_table.mib``). The
            # kubelet may have allocated IDs again whose former pod the agent does not know as gone.
            held: dict[str, int] = {}
            for pod in device_table.on(gpu.uuid):
                for device_id in pod.ids_by_gpu.get(resource, EMPTY).get(gpu.uuid, ()):
                    held[device_id] = max(held.get(device_id, 0), pod.unit_mib)
            used = mib + sum(held.values())
            free = free_units(gpu.mib, node_config.effective_mode.unit_mib, used) + more
            ids = _numbered(gpu, len(held) + free)
            if not held.keys() <= set(ids):
                ids = in_order(held.keys() | set(free_ids(gpu.uuid, held.keys(), free)))
        elif resource == GPU_CORE:
            ids = _numbered(gpu, CORE_PERCENT)
        elif node_config.replicated:
            ids = _numbered(gpu, node_config.effective_mode.replicas)
        found += ((device_id, gpu.healthy) for device_id in ids)
    return tuple(found)


def _numbered(gpu: Gpu, parts: int) -> list[str]:
    return [part_id(gpu.uuid, number) for number in range(parts)]
