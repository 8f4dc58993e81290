"""Defines the extender's own metrics: requests, pending pods, and free GPU memory.

The number of time series does not depend on the size of the cluster.
"""

import asyncio
import collections
from collections.abc import Callable, KeysView
from datetime import datetime
from enum import StrEnum
from typing import Final

from prometheus_client import Counter, Histogram

from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.quantity import MIB
from gputile.api.well_known import EventReason
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.free_memory import FREE_STEPS_GIB, FreeMemory, free_memory
from gputile.support.telemetry import MetricsRegistry

_WAIT_SECONDS = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    14400.0,
    86400.0,
)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ExtenderMetrics:
    """The counters of one extender."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.requests = Counter(
            "gputile_extender_requests_total",
            "Calls from kube-scheduler by verb and outcome.",
            ["verb", "outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "gputile_extender_request_seconds",
            "Time to answer kube-scheduler, seconds.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._wait = Histogram(
            "gputile_extender_pod_wait_seconds",
            "Time from a GPU pod's creation to its Binding, seconds.",
            buckets=_WAIT_SECONDS,
            registry=self.registry,
        )

    def waited(self, pod: Pod, now: datetime) -> None:
        """Record how long a pod waited until it was bound at ``now``.

        The wait begins at the pod's creation timestamp, which the API server sets.
        """
        if created := unix_seconds(pod.metadata.creation_timestamp):
            self._wait.observe(max(0.0, now.timestamp() - created))


EVERY_S: Final = 15.0


class CapacityWatch:
    """Computes a ledger's free memory every ``EVERY_S`` seconds, and stores it in ``latest``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.latest = FreeMemory()

    async def run(self) -> None:
        while True:
            await self.update()
            await asyncio.sleep(EVERY_S)

    async def update(self) -> None:
        self.latest = await asyncio.to_thread(free_memory, self._ledger.snapshot())

    def export(self, registry: MetricsRegistry) -> None:
        gauge = registry.gauge
        gauge(
            "gputile_ledger_gpu_memory_bytes",
            "Memory of the healthy GPUs that gputile books, bytes.",
            lambda: self.latest.total * MIB,
        )
        gauge(
            "gputile_ledger_gpu_memory_booked_bytes",
            "Booked memory of the healthy GPUs, bytes. A whole GPU counts with all its memory.",
            lambda: self.latest.booked * MIB,
        )
        registry.labelled(
            "gputile_ledger_free_memory_bytes",
            "Free memory on nodes that take pods, bytes. The label is the largest step, in GiB, "
            "that the free memory of the GPU reaches.",
            "at_least_gib",
            lambda: [
                (str(gib), mib * MIB)
                for gib, mib in zip(FREE_STEPS_GIB, self.latest.free_by_step, strict=True)
            ],
        )
        gauge(
            "gputile_ledger_largest_free_memory_bytes",
            "Largest free memory of a single GPU on nodes that take pods, bytes.",
            lambda: self.latest.largest_free * MIB,
        )
        gauge(
            "gputile_ledger_free_gpus",
            "GPUs without bookings on nodes that take pods.",
            lambda: self.latest.free_gpus,
        )
        gauge(
            "gputile_ledger_fragmentation_ratio",
            "Part of the free memory that pods like the running ones cannot use, from 0 to 1 (F of "
            "the FGD paper).",
            lambda: self.latest.fragmentation,
        )


class PendingReason(StrEnum):
    """The reason why a pod is pending. It is the value of the metrics' label ``reason``."""

    NO_GPU_FITS = "no_gpu_fits"
    INVALID_REQUEST = "invalid_request"
    GATED = "gated"
    # kube-scheduler has not called the extender yet, or something other than GPUs is missing
    NOT_PLACED = "not_placed"


_OF_EVENTS: Final = {
    EventReason.NO_GPU_FITS: PendingReason.NO_GPU_FITS,
    EventReason.INVALID_GPU_REQUEST: PendingReason.INVALID_REQUEST,
}


class PendingPods:
    """The pending GPU pods by UID, each with its reason and the start of its wait.

    Times are Unix seconds. ``unit_mib`` and ``trust_group`` come from the configuration.
    """

    def __init__(
        self, unit_mib: int, trust_group: Callable[[Pod], str], unix_time: Callable[[], float]
    ) -> None:
        self._unit_mib = unit_mib
        self._trust_group = trust_group
        self._unix_time = unix_time
        self._waits: dict[str, tuple[PendingReason, float]] = {}

    def pod_applied(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.spec.node_name or pod.finished or is_placeholder(pod):
            self._waits.pop(uid, None)
            return
        try:
            if parse_request(pod, self._unit_mib, self._trust_group) is None:
                return
        except RequestError:
            self._wait(uid, PendingReason.INVALID_REQUEST)
            return
        before, _ = self._waits.get(uid, (PendingReason.NOT_PLACED, 0.0))
        if pod.spec.scheduling_gates:
            self._wait(uid, PendingReason.GATED)
        else:
            self._wait(uid, PendingReason.NOT_PLACED if before is PendingReason.GATED else before)

    def pod_deleted(self, uid: str) -> None:
        self._waits.pop(uid, None)

    def uids(self) -> KeysView[str]:
        return self._waits.keys()

    def event_recorded(self, uid: str, event: EventReason) -> None:
        """Update the reason of a pending pod after an event was recorded for the pod."""
        if uid in self._waits and event in _OF_EVENTS:
            self._wait(uid, _OF_EVENTS[event])

    def counts(self) -> list[tuple[str, float]]:
        """Return the number of pending pods for each reason, including zeros."""
        found = collections.Counter(reason for reason, _ in self._waits.values())
        return [(reason.value, found[reason]) for reason in PendingReason]

    def since(self) -> list[tuple[str, float]]:
        """Return when the longest wait for each reason began (Unix seconds), or 0 if none waits."""
        found: dict[PendingReason, float] = {}
        for reason, since in self._waits.values():
            found[reason] = min(since, found.get(reason, since))
        return [(reason.value, found.get(reason, 0.0)) for reason in PendingReason]

    def _wait(self, uid: str, reason: PendingReason) -> None:
        before = self._waits.get(uid)
        if before is None or before[0] is not reason:
            self._waits[uid] = (reason, self._unix_time())
