"""Measures the core without HTTP: the time to filter, rank, book and release, and the memory.

The times are compared with a scan of the same cluster in plain Python, which uses a dict of nodes
with lists of free memory. They are also compared with ``json.loads`` of the node names that a
scheduler sends.
"""

import json
import time
from collections.abc import Iterator

from benchmarks.clusters import GPUS, booking_for, filled, request_for
from benchmarks.report import Result, Times, cpu_times, resident_mib, without_collector
from gputile.core.placement.fit import best_set
from gputile.core.scheduling.placement_engine import PlacementEngine

NODES, PODS = 5_000, 50_000
RUNS = 500
NAME = "core"


def run() -> Iterator[Result]:
    """Measure milliseconds, microseconds and MiB."""
    before = resident_mib()
    engine, names = filled(NODES, PODS)
    memory = resident_mib() - before
    body = json.dumps(names)
    parse = cpu_times(lambda _: json.loads(body), 100)
    scan = _plain_scan(engine, names)
    yield Result(NAME, f"plain Python scan of {NODES} nodes", scan.median * 1e3, "ms")
    yield Result(NAME, f"json.loads of {NODES} names", parse.median * 1e3, "ms")

    steady = _filter_and_rank(engine, names)
    for what, seconds, target in (("median", steady.median, 1.0), ("p99", steady.at(0.99), 3.0)):
        yield _against_scan(
            f"filter + rank, {NODES} nodes, {PODS} pods: {what}", seconds, scan, target
        )
    first = _first_of_a_shape(engine, names)
    yield _against_scan("filter + rank, a shape never asked for: median", first.median, scan, 3.0)
    refused = cpu_times(lambda _: engine.filter(request_for(16), names), 100)
    yield _against_scan(
        "filter where no node fits, with reasons: median", refused.median, scan, 3.0
    )

    for what, times in _book_and_release(engine, names):
        micro = times.median * 1e6
        yield Result(
            NAME,
            f"{what}: median",
            micro,
            "us",
            20.0,
            times.median / parse.median,
            "json.loads of the names",
        )
    yield Result(
        NAME,
        f"memory, {NODES} nodes, {PODS} pods",
        memory,
        "MiB",
        400.0,
        memory * 2**20 / PODS,
        "byte a pod",
    )

    packing = _filter_and_rank(*filled(NODES, PODS, placement="packing"))
    for what, seconds, usual, target in (
        ("median", packing.median, steady.median, 1.0),
        ("p99", packing.at(0.99), steady.at(0.99), 3.0),
    ):
        text = f"filter + rank by packing, {NODES} nodes, {PODS} pods: {what}"
        yield Result(NAME, text, seconds * 1e3, "ms", target, seconds / usual, "binpack")

    links = tuple(tuple(300.0 if a // 8 == b // 8 else 20.0 for a in range(16)) for b in range(16))
    best_set.cache_clear()
    search = cpu_times(lambda i: best_set(links, tuple(range(16)), 1 + i), 15, warm_up=0)
    yield Result(
        NAME,
        "best-connected set of 16 GPUs on two switches: worst",
        search.at(1.0) * 1e3,
        "ms",
        50.0,
    )


def _against_scan(what: str, seconds: float, scan: Times, target: float) -> Result:
    return Result(NAME, what, seconds * 1e3, "ms", target, seconds / scan.median, "the plain scan")


def _filter_and_rank(engine: PlacementEngine, names: list[str]) -> Times:
    """Filter and rank nodes for one pod after another, and book each pod before the next."""
    requests = [request_for(units) for units in (1, 2, 3)]
    booked = []

    def one(i: int) -> None:
        request = requests[i % 3]
        engine.rank(request, engine.filter(request, names).feasible)

    seconds = []
    with without_collector():
        for i in range(RUNS):
            started = time.process_time_ns()
            one(i)
            seconds.append((time.process_time_ns() - started) / 1e9)
            booking = booking_for(engine, 10**7 + i, 1 + i % 3, names[i * 7919 % len(names)])
            if booking is not None:
                engine.ledger.assume(booking)
                booked.append(booking.uid)
    for uid in booked:
        engine.ledger.remove_pod(uid)
    return Times(tuple(seconds[3:]))


def _first_of_a_shape(engine: PlacementEngine, names: list[str]) -> Times:
    def one(_: int) -> None:
        request = request_for(2)
        fresh = PlacementEngine(engine.ledger)
        fresh.rank(request, fresh.filter(request, names).feasible)

    return cpu_times(one, 100)


def _book_and_release(engine: PlacementEngine, names: list[str]) -> Iterator[tuple[str, Times]]:
    bookings = []
    for i in range(2_000):
        booking = booking_for(engine, 2 * 10**7 + i, 1, names[i * 7919 % len(names)])
        if booking is not None:
            bookings.append(booking)
    yield "book", cpu_times(lambda i: engine.ledger.assume(bookings[i]), len(bookings), warm_up=0)
    yield (
        "release",
        cpu_times(lambda i: engine.ledger.remove_pod(bookings[i].uid), len(bookings), warm_up=0),
    )


def _plain_scan(engine: PlacementEngine, names: list[str]) -> Times:
    """Score the same cluster without arrays, by a loop over the free memory of all GPUs."""
    arrays, ledger = engine.ledger.node_arrays, engine.ledger
    free = {
        name: (arrays.total[row] - arrays.used[row]).tolist()[:GPUS]
        for name, row in ledger.row_of.items()
    }
    need = request_for(2).shape.mib

    def one(_: int) -> dict[str, int]:
        scores = {}
        for name in names:
            tightest = min((mib for mib in free[name] if mib >= need), default=None)
            if tightest is not None:
                scores[name] = 1000 - (tightest + sum(free[name])) // 256
        best = max(scores.values())
        return {name: 10 * score // best for name, score in scores.items()}

    return cpu_times(one, 20)
