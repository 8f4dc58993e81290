"""Measures how long each handler of a service blocks its event loop.

The cluster has 5,000 nodes and 50,000 pods, with 1,000 gangs or one gang of 2,000 pods. While its
event loop is blocked, a service answers no requests and renews no Lease. The target applies to the
CPU time of the loop's thread. The wall-clock time is also printed, but it includes the time that
other programs use. The handlers run as in the service, with an API server in memory.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from benchmarks.clusters import node_name
from benchmarks.report import Result, cpu_times, without_collector

NAME = "holds"
TARGET_MS = 50.0
NODES = 5_000


class LoopMeter:
    """Records the longest callback while it is ``watching``, in CPU and in wall-clock seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_wall = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure every callback that an event loop of this thread starts within the context."""
        plain = asyncio.Handle._run  # noqa: SLF001 - asyncio has no public hook for callbacks

        def timed(handle: asyncio.Handle) -> None:
            began, started = time.perf_counter(), time.thread_time_ns()
            try:
                plain(handle)
            finally:
                self.longest = max(self.longest, (time.thread_time_ns() - started) / 1e9)
                self.longest_wall = max(self.longest_wall, time.perf_counter() - began)

        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield


@dataclass(frozen=True, slots=True)
class Case:
    """One handler. ``drive`` runs the handler on an event loop while the meter is watching."""

    what: str
    drive: Callable[[LoopMeter], Coroutine[Any, Any, None]]


def run(*services: Callable[[], Iterable[Case]]) -> Iterator[Result]:
    """Yield the longest time that each handler of the services blocks the loop."""
    body = json.dumps([node_name(i) for i in range(NODES)])
    parse = cpu_times(lambda _: json.loads(body), 100).median
    for cases in services:
        for case in cases():
            meter = LoopMeter()
            with without_collector():
                asyncio.run(case.drive(meter))
            ratio = meter.longest / parse
            against = f"json.loads of {NODES} names; {meter.longest_wall * 1e3:.0f} ms by the clock"
            yield Result(NAME, case.what, meter.longest * 1e3, "ms", TARGET_MS, ratio, against)
