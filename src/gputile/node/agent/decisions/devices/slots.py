"""Computes how many device IDs of a GPU are advertised.

IDs and MiB never disagree, whatever the memory unit was.

The kubelet counts IDs and the ledger counts MiB. While the unit never changes the two are the same: a GPU of M MiB
has floor(M / u) slots, and a pod that asks k units holds k of them. When the unit changes under running pods, a held ID
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
* Which slots are free is arbitrary, an ID's slot being a name. The lowest that nobody holds are taken: with one unit
  these are always the slots below ``floor(M / u)``, and giving one away or back moves no other.

A free ID that the kubelet gives away at the very moment when it stops being offered does no harm: admission checks MiB,
not names. The number of listed IDs never exceeds that of the smallest unit in use, so the message limit holds too.
"""

from collections.abc import Iterable, Set
from itertools import count, islice

from gputile.api.quantity import MIB
from gputile.api.well_known import SMALLEST_UNIT_MIB
from gputile.core.devices.inventory import Gpu, advertised_units
from gputile.node.agent.state.device_ids import encode

# The kubelet dials plugins with gRPC's default limit on received messages; a margin is left for the stream's framing.
MESSAGE_LIMIT = 4 * MIB - 4096
_HEALTH = len("Unhealthy")


class UnitError(ValueError):
    """The memory unit cannot be used on this node; the text names the smallest that can."""


def free_units(total_mib: int, unit_mib: int, held_mib: int) -> int:
    """Return how many units can still be given away on a GPU of ``total_mib`` of which ``held_mib`` are held."""
    return max(0, total_mib // unit_mib - -(-held_mib // unit_mib))


def free_slots(held: Set[int], free: int) -> tuple[int, ...]:
    return tuple(islice((slot for slot in count() if slot not in held), free))


def message_bytes(gpus: Iterable[Gpu], unit_mib: int) -> int:
    """Return the most bytes of a ListAndWatch message for ``gpus``: in protobuf, with every ID unhealthy."""
    size = 0
    for gpu in gpus:
        units = advertised_units(gpu, unit_mib)
        # Each field has a tag and a length, and so has the Device that holds the two; all lengths are below 128.
        size += units * (6 + len(encode(gpu.index, max(0, units - 1))) + _HEALTH)
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
