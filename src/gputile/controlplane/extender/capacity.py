"""Sums up what is free in the cluster, in steps, so that no answer to kube-scheduler waits for it."""

import asyncio
from typing import Final

from gputile.api.quantity import MIB
from gputile.controlplane.event_loop_slices import in_slices
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.free_memory import HOLES_GIB, FreeMemory, free_memory
from gputile.support.metrics import MetricsRegistry

EVERY_S: Final = 15.0


class CapacityWatch:
    """Keeps the sum of one ledger; ``latest`` is from the last time."""

    def __init__(self, ledger: Ledger, *, every: float = EVERY_S) -> None:
        self._ledger = ledger
        self._every = every
        self.latest = FreeMemory()

    async def run(self) -> None:
        """Sum up every so many seconds, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Sum up once; others get their turn between the steps."""
        self.latest = await in_slices(free_memory(self._ledger)) or self.latest

    def export(self, registry: MetricsRegistry) -> None:
        """Export the sums."""
        gauge = registry.gauge
        gauge(
            "gputile_ledger_gpu_memory_bytes",
            "Memory of the healthy GPUs that gputile books, bytes.",
            lambda: self.latest.total * MIB,
        )
        gauge(
            "gputile_ledger_gpu_memory_booked_bytes",
            "Memory of these GPUs that pods have, bytes; whole GPUs with all of theirs.",
            lambda: self.latest.booked * MIB,
        )
        registry.labelled(
            "gputile_ledger_free_memory_bytes",
            "Free memory of these GPUs on nodes that take pods, by the size of the hole: of GPUs with at least so many "
            "GiB free, and less than the next size, bytes.",
            "hole_gib",
            lambda: [(str(gib), mib * MIB) for gib, mib in zip(HOLES_GIB, self.latest.holes, strict=True)],
        )
        gauge(
            "gputile_ledger_largest_hole_bytes",
            "The most memory that is free on one GPU of a node that takes pods, bytes.",
            lambda: self.latest.largest_hole * MIB,
        )
        gauge(
            "gputile_ledger_free_gpus",
            "GPUs with nothing booked, on nodes that take pods.",
            lambda: self.latest.free_gpus,
        )
        gauge(
            "gputile_ledger_fragmentation_ratio",
            "Part of the free memory that pods like those that run could not use, from 0 to 1 (F of the FGD paper).",
            lambda: self.latest.fragmentation,
        )
