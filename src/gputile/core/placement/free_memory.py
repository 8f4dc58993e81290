"""Computes the free GPU memory of the cluster, its fragmentation, and the over-allocated GPUs."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement.vectorized import ready

MIB_OF_GIB: Final = 1024
FREE_STEPS_GIB: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""The lower bounds, in GiB, of the classes into which GPUs are sorted by their free memory."""
_MOST_SHAPES: Final = 64
_BOOKED_HERE: Final = (
    ServingMode.WHOLE,
    ServingMode.TOPOLOGY,
    ServingMode.MEMORY,
    ServingMode.MEMORY_AND_CORE,
)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory of healthy GPUs that gputile books, in MiB.

    Nothing counts as free on nodes that are cordoned, are not ready, or offer no GPUs.
    """

    total: int = 0
    booked: int = 0
    free_by_step: tuple[int, ...] = (0,) * len(FREE_STEPS_GIB)  # for each class of GPUs
    largest_free: int = 0  # the most free memory of one GPU
    free_gpus: int = 0  # the number of GPUs without a booking
    unusable: float = 0.0  # the free memory that typical pods cannot use

    @property
    def free(self) -> int:
        return sum(self.free_by_step)

    @property
    def fragmentation(self) -> float:
        """The fraction of the free memory that typical pods cannot use."""
        return self.unusable / self.free if self.free else 0.0


def free_memory(ledger: Ledger) -> FreeMemory:
    """Compute the free memory and its fragmentation.

    Fragmentation is defined as in Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
    Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023). A pod m cannot use the free
    memory of a GPU if m requests more than this, or if m does not fit the node. F(m) is all free
    memory that m cannot use. F is the mean of F(m) over a workload, weighted by the frequency of
    each m. Fragmentation is F divided by all free memory. Here, the workload consists of the 64
    most frequent shapes of requests among the pods that have GPUs now. CPU is ignored.
    """
    counts: Counter[Shape] = Counter()
    for booking in ledger.bookings():
        if booking.gpus:
            counts[_shape(booking, ledger)] += 1
    arrays = ledger.node_arrays
    booked_here = np.isin(arrays.serving_mode, _BOOKED_HERE)[:, None] & arrays.usable
    total = np.where(booked_here, arrays.total, 0)
    closed = np.zeros((arrays.rows, 1), np.bool_)
    closed[[row for row, info in ledger.nodes() if info.closed]] = True
    free = np.where(closed, 0, np.maximum(total - arrays.used, 0))
    steps = np.searchsorted(np.array(FREE_STEPS_GIB[1:]) * MIB_OF_GIB, free, side="right")
    free_by_step = np.bincount(steps.ravel(), weights=free.ravel(), minlength=len(FREE_STEPS_GIB))
    typical, unusable = counts.most_common(_MOST_SHAPES), 0.0
    for shape, count in typical:
        fits, gpus = ready(arrays, shape, slice(None))
        unusable += count * float(np.where(fits[:, None] & gpus, 0, free).sum())
    return FreeMemory(
        total=int(total.sum()),
        booked=int(np.where(booked_here, arrays.used, 0).sum()),
        free_by_step=tuple(int(mib) for mib in free_by_step),
        largest_free=int(free.max(initial=0)),
        free_gpus=int((booked_here & ~closed & (arrays.pods == 0)).sum()),
        unusable=unusable / max(1, sum(count for _, count in typical)),
    )


def _shape(booking: Booking, ledger: Ledger) -> Shape:
    """Return the shape that a booked pod requested, as far as the booking shows the request."""
    row, gpus = ledger.row_of.get(booking.node), len(booking.gpus)
    arrays = ledger.node_arrays
    if booking.whole:
        topology = row is not None and arrays.serving_mode[row] == ServingMode.TOPOLOGY
        return Shape(RequestKind.TOPOLOGY if topology else RequestKind.WHOLE, gpus)
    share = booking.gpus[0]
    unit = int(arrays.unit[row]) if row is not None else 0
    return Shape(RequestKind.SHARED, gpus, share.mib, min(share.percent, 100), unit_mib=unit)


def overallocated_gpus(ledger: Ledger) -> int:
    """Return how many usable GPUs are booked beyond their memory. Reservations do not count."""
    arrays = ledger.node_arrays
    used = arrays.used.copy()
    for booking in ledger.reserved():
        row, info = ledger.row_of.get(booking.node), ledger.info_of(booking.node)
        if row is None or info is None:
            continue
        for share in booking.gpus:
            i = info.column(share.uuid)
            if i is not None:
                used[row, i] -= booking.amounts(share, int(arrays.total[row, i]), info.replicas)[0]
    return int(((used > arrays.total) & arrays.usable).sum())
