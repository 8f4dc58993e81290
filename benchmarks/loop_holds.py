"""Measures how long each handler of a service blocks its event loop.

The cluster has 5,000 nodes and 50,000 pods, with 1,000 gangs or one gang of 2,000 pods. While its event loop is
blocked, a service answers no requests and renews no Lease. The target is for the CPU time of the loop's thread; the
wall-clock time, which is printed too, includes the time of other programs. Handlers are driven as in the service, with
an API server in memory. Each function in ``PARTS`` yields the cases of one service.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator

from benchmarks import controller_holds, extender_holds
from benchmarks.clusters import node_name
from benchmarks.loopmeter import Case, LoopMeter
from benchmarks.report import Result, cpu_times, without_collector

NAME = "holds"
TARGET_MS = 50.0
NODES = 5_000
PARTS: tuple[Callable[[], Iterable[Case]], ...] = (controller_holds.cases, extender_holds.cases)


def run() -> Iterator[Result]:
    """Yield the longest time that each handler blocks the loop."""
    body = json.dumps([node_name(i) for i in range(NODES)])
    parse = cpu_times(lambda _: json.loads(body), 100).median
    for part in PARTS:
        for case in part():
            meter = LoopMeter()
            with without_collector():
                asyncio.run(case.drive(meter))
            ratio = meter.longest / parse
            against = f"json.loads of {NODES} names; {meter.longest_wall * 1e3:.0f} ms by the clock"
            yield Result(NAME, case.what, meter.longest * 1e3, "ms", TARGET_MS, ratio, against)
