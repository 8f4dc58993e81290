"""Measures how the cost of each decision grows with the cluster and with the size of a gang.

A curve shows how CPU time depends on the number of nodes, each with eight GPUs and ten pods, or on
the number of pods in a gang. The exponent describes the growth from a tenth of the largest size to
the largest size: 0 means constant time, and 1 means linear growth. ``python -m benchmarks.growth``
measures the curves, and prints the tables of docs/reference/benchmarks.md.
"""

import asyncio
import gc
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from docs.generator.tables import table

from benchmarks.clusters import GPUS, filled, gpu_pod, request_for
from benchmarks.controller_holds import Bench, add_gang, objects, taken_over
from benchmarks.report import Result, without_collector
from benchmarks.start import node_items, pod_items, start
from benchmarks.what_if import documents_of, simulated
from gputile.api.core import Pod
from gputile.api.well_known import GPU_COUNT_LABEL
from gputile.core.devices.request import parse_request
from gputile.core.scheduling.bind import PodBinding, assume_pod
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch

NAME = "growth"
NODES: Final = (100, 316, 1_000, 3_162, 10_000)
GANGS: Final = (8, 32, 126, 500, 2_000)  # pods
GANG_NODES: Final = 5_000
_COMPARED: Final = 100  # nodes on which a pod compares victims
_PODS_A_NODE, _GANG, _RUNS, _TIMES = 10, 64, 200, 3
_STARTED_S: Final = 1_000_000.0  # Unix time; 0 would mean an unknown start


@dataclass(frozen=True, slots=True)
class Curve:
    """The CPU seconds of an operation for each of ``sizes``. ``of`` is what the sizes count."""

    what: str
    of: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The slope over the sizes from a tenth of the largest size on, with logarithmic axes."""
        first = next(i for i, size in enumerate(self.sizes) if size * 11 > self.sizes[-1])
        return math.log(self.seconds[-1] / self.seconds[first]) / math.log(
            self.sizes[-1] / self.sizes[first]
        )


def curves(
    nodes: Sequence[int] = NODES,
    gangs: Sequence[int] = GANGS,
    gang_nodes: int = GANG_NODES,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[Curve]:
    """Yield the curves of all operations. Before each size, call ``told`` with a description."""
    found: dict[str, list[float]] = {}
    for count in nodes:
        told(f"{count} nodes")
        for part in (_placement, _preemption, _controller, _whole_processes):
            for what, seconds in part(count).items():
                found.setdefault(what, []).append(seconds)
    for what, each in found.items():
        yield Curve(what, "nodes", tuple(nodes), tuple(each))
    told(f"gangs on {gang_nodes} nodes")
    yield Curve(
        "gang planned and written",
        "pods of the gang",
        tuple(gangs),
        tuple(_gangs(gang_nodes, gangs)),
    )


def run() -> Iterator[Result]:
    """Yield the cost at the largest size, its ratio to the cost at the smallest size, and the
    exponent.
    """
    for curve in curves():
        what, seconds = f"{curve.what}, {curve.sizes[-1]} {curve.of}", curve.seconds
        yield Result(
            NAME,
            what,
            seconds[-1] * 1e3,
            "ms",
            None,
            seconds[-1] / seconds[0],
            f"that of {curve.sizes[0]}",
        )
        yield Result(NAME, f"{curve.what}: exponent", curve.exponent, "")


def _placement(nodes: int) -> Mapping[str, float]:
    """Schedule one pod after another. Bind each pod before the next, as kube-scheduler does."""
    engine, names = filled(nodes, _PODS_A_NODE * nodes)
    kinds = [request_for(units) for units in (1, 2, 3)]
    parts: tuple[list[float], ...] = ([], [], [], [])
    bound = []
    with without_collector():
        for number in range(_RUNS):
            request, pod = kinds[number % 3], gpu_pod(10**7 + number, 1 + number % 3)
            times = [time.process_time_ns()]
            feasible = engine.filter(request, names).feasible
            times.append(time.process_time_ns())
            ranks = engine.rank(request, feasible)
            times.append(time.process_time_ns())
            best = feasible[ranks.index(max(ranks))]
            times.append(time.process_time_ns())
            verdict = assume_pod(engine, pod, best, number, 0.0)
            times.append(time.process_time_ns())
            assert isinstance(verdict, PodBinding), "a node that is feasible takes the pod"
            verdict.confirm()
            bound.append(pod.metadata.uid)
            fresh = PlacementEngine(engine.ledger)
            times.append(time.process_time_ns())
            fresh.filter(request, names)
            times.append(time.process_time_ns())
            for part, (began, ended) in zip(parts, ((0, 1), (1, 2), (3, 4), (5, 6)), strict=True):
                part.append((times[ended] - times[began]) / 1e9)
    names_of = ("filter", "prioritize", "bind: choice and booking", "filter of a new kind of pod")
    return {what: statistics.median(part) for what, part in zip(names_of, parts, strict=True)}


def _preemption(nodes: int) -> Mapping[str, float]:
    """Choose victims for a pod that requests all GPUs of a node, while no node is empty."""
    engine, names = filled(nodes, _PODS_A_NODE * nodes)
    facts = {
        each.uid: EvictionFacts("bench", each.name, started_at=_STARTED_S)
        for each in engine.ledger.bookings()
    }
    for uid in facts:
        engine.ledger.confirm(uid)
    rules = EvictionRules(facts, {})
    request = parse_request(_whole_node_pod(), 1024)
    assert request is not None
    preemptor, times = Preemptor("p", request, 1000, 2 * _STARTED_S), []
    with without_collector():
        for _ in range(_TIMES):
            began = time.process_time_ns()
            search = VictimSearch(engine, preemptor, rules)
            compared = filter(None, map(search.on_node, names[:_COMPARED]))
            chosen = min(compared, key=lambda each: each.loss, default=None)
            times.append((time.process_time_ns() - began) / 1e9)
            assert chosen is not None
            assert chosen.evicted
    return {"preemption: choice of the victims": statistics.median(times)}


def _whole_node_pod() -> Pod:
    pod = gpu_pod(10**7, 15 * GPUS)
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, labels={GPU_COUNT_LABEL: "8"})
    )


def _controller(nodes: int) -> Mapping[str, float]:
    async def measured() -> Mapping[str, float]:
        bench = Bench(*objects(nodes, _PODS_A_NODE * nodes))
        lists = await _cpu_seconds(bench.list)
        lead = await _cpu_seconds(lambda: taken_over(bench))
        gangs = []
        for number in range(_TIMES):
            add_gang(bench, f"gang-{number}", _GANG, 1)
            gangs.append(await _cpu_seconds(bench.rounds.run_round))
        return {
            "controller: lists and the first round": lists,
            "controller: a new leader reviews all nodes": lead,
            f"gang of {_GANG} planned and written": statistics.median(gangs),
        }

    with without_collector():
        return asyncio.run(measured())


def _gangs(nodes: int, sizes: Sequence[int]) -> Iterator[float]:
    found, pods = objects(nodes, _PODS_A_NODE * nodes)

    async def measured(size: int) -> float:
        bench = Bench(found, pods)
        await bench.list()
        add_gang(bench, "gang", size, 1)
        return await _cpu_seconds(bench.rounds.run_round)

    for size in sizes:
        with without_collector():
            yield asyncio.run(measured(size))


async def _cpu_seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time_ns()
    await work()
    return (time.process_time_ns() - began) / 1e9


def _whole_processes(nodes: int) -> Mapping[str, float]:
    engine, _ = filled(nodes, _PODS_A_NODE * nodes)
    started = asyncio.run(start(node_items(nodes), pod_items(engine.ledger)))
    what_if, _mib = simulated(nodes, documents_of(2 * nodes))
    return {"extender: start to ready": started.cpu, "simulate: two pods a node": what_if}


def tables(found: Sequence[Curve]) -> str:
    """Return the curves as the Markdown tables of docs/reference/benchmarks.md.

    There is one table for each unit of size.
    """
    parts = []
    for of in dict.fromkeys(each.of for each in found):
        mine = [each for each in found if each.of == of]
        rows = [[each.what, *map(_told, each.seconds), f"{each.exponent:.2f}"] for each in mine]
        parts.append(
            table(
                [f"CPU time, by {of}", *(f"{size:,}" for size in mine[0].sizes), "exponent"], rows
            )
        )
    return "\n\n".join(parts)


def _told(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{float(f'{seconds * 1e3:.2g}'):g} ms"


if __name__ == "__main__":
    gc.collect()
    print(tables(list(curves(told=lambda text: print(text, file=sys.stderr, flush=True)))))
