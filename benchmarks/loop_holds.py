"""How long each handler of a service holds its event loop: 5,000 nodes, 50,000 pods, 1,000 gangs, a gang of 2,000.

While a loop is held, the service answers nobody and renews no Lease. What is compared with the target is CPU time of
the loop's thread; the clock's, beside it, has what other programs took meanwhile too. A handler is driven as the
service drives it; the API server is an object that answers at once. Each part of ``PARTS`` yields the cases of one
service.
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
    """Yield the longest hold of each handler."""
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
