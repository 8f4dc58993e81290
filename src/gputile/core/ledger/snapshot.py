"""Copies the state of one node, for the scalar rules of placement, explanations and tables."""

from dataclasses import dataclass

from gputile.core.devices.inventory import Gpu
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo, ServingMode


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU and what is booked on it: MiB, percent of compute, pods, and the number of their trust group."""

    gpu: Gpu
    total: int
    used: int
    percent: int
    pods: int
    group: int

    @property
    def free(self) -> int:
        """MiB that can still be booked; never negative, even if annotations claim more than there is."""
        return max(0, self.total - self.used)

    @property
    def empty(self) -> bool:
        return self.pods == 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and its GPUs. ``blocked_by`` are the pods on unknown GPUs that block the node."""

    info: NodeInfo
    serving_mode: ServingMode
    gpus: tuple[GpuState, ...]
    blocked_by: tuple[str, ...] = ()

    @property
    def spread(self) -> bool:
        return self.info.placement == "spread"


def overallocated_gpus(ledger: Ledger) -> int:
    """Return the number of usable GPUs whose bookings exceed their memory; reservations do not count."""
    arrays = ledger.node_arrays
    held = arrays.used.copy()
    for booking in ledger.bookings():
        row = ledger.row_of.get(booking.node)
        info = ledger.node_info(row) if row is not None and booking.reserved else None
        if row is None or info is None:
            continue
        for share in booking.gpus:
            i = info.column(share.uuid)
            if i is not None:
                held[row, i] -= booking.takes(share, int(arrays.total[row, i]), info.replicas)[0]
    return int(((held > arrays.total) & arrays.usable).sum())


def node_state(ledger: Ledger, row: int, node_info: NodeInfo) -> NodeState:
    arrays = ledger.node_arrays
    gpus = tuple(
        GpuState(
            gpu=gpu,
            total=int(arrays.total[row, i]),
            used=int(arrays.used[row, i]),
            percent=int(arrays.percent[row, i]),
            pods=int(arrays.pods[row, i]),
            group=int(arrays.group[row, i]),
        )
        for i, gpu in enumerate(node_info.inventory.gpus)
    )
    closed = arrays.serving_mode[row] == ServingMode.BLOCKED
    blocked_by = tuple(booking.key for booking in ledger.unplaced(node_info.name)) if closed else ()
    return NodeState(
        info=node_info,
        serving_mode=ServingMode.BLOCKED if blocked_by else node_info.serving_mode,
        gpus=gpus,
        blocked_by=blocked_by,
    )
