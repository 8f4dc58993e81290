"""Replays workloads of a trace with several placement policies, on all CPUs in parallel."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from benchmarks.replay import departures
from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.departures import Stay
from benchmarks.replay.engine import (
    BestFit,
    Curve,
    Fgd,
    LivePlacer,
    Placer,
    Random,
    ReferencePlacer,
    ReferencePolicy,
    replay,
)
from benchmarks.replay.trace import (
    Arrivals,
    Nodes,
    Workload,
    read_arrivals,
    read_nodes,
    read_workload,
)
from gputile.api.well_known import Placement

POINTS = (95, 100, 130)
"""Percentages of the cluster's GPUs; policies are compared when the arrived demand reaches them."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of one replay.

    ``allocated`` contains the percentage of allocated GPUs at each of ``POINTS``, or None if the
    point was not reached.
    """

    workload: str
    policy: str
    seed: int
    allocated: dict[int, float | None]
    failed_pods: int
    seconds: float


def allocated(curve: Curve, point: int) -> float | None:
    """Return the mean percentage of allocated GPUs while the demand rounds to ``point`` %.

    Return None if there are no such arrivals.
    """
    at = np.rint(100 * curve.arrived / curve.total) == point
    return round(float(100 * curve.used[at].mean() / curve.total), 3) if at.any() else None


_REFERENCES: dict[str, Callable[[Workload, int], ReferencePolicy]] = {
    "random": lambda _workload, seed: Random(seed),
    "bestfit": lambda _workload, _seed: BestFit(),
    "fgd": lambda workload, _seed: Fgd(workload),
}
_LIVE: dict[str, Placement] = {name: name for name in get_args(Placement)}

POLICIES = (*_REFERENCES, *_LIVE)


def make_placer(
    name: str,
    nodes: Nodes,
    workload: Workload,
    arrivals: Arrivals,
    seed: int,
    *,
    ranked: bool = True,
) -> Placer:
    """Return a placer with a policy on an empty cluster.

    gputile's own policies know only the nodes, and ``packing`` learns the workload as pods arrive.
    FGD knows the whole workload. If ``ranked`` is set, gputile's policies also rank nodes for pods
    without GPUs.
    """
    if name in _LIVE:
        return LivePlacer(
            ReplayCluster(nodes, workload.shapes, arrivals.rank, _LIVE[name]), ranked=ranked
        )
    cluster = ReplayCluster(nodes, workload.shapes, arrivals.rank)
    return ReferencePlacer(cluster, _REFERENCES[name](workload, seed))


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Task:
    """One replay to run. The task is sent to a process, which reads the trace itself."""

    trace: Path
    workload: str
    policy: str
    seed: int
    load: float = 1.0
    """Peak demand in ``measure_departures``, as a multiple of the GPUs."""
    ranked: bool = True
    """Whether gputile's own policies rank nodes for pods without GPUs; else kube-scheduler
    spreads these.
    """


def _read(task: Task) -> tuple[Nodes, Workload, Arrivals]:
    nodes, workload = read_nodes(task.trace), read_workload(task.trace, task.workload)
    return nodes, workload, read_arrivals(task.trace, nodes, workload, task.seed)


def _placer(task: Task, nodes: Nodes, workload: Workload, arrivals: Arrivals) -> Placer:
    return make_placer(task.policy, nodes, workload, arrivals, task.seed, ranked=task.ranked)


def measure(task: Task) -> ReplayResult:
    """Replay arrivals without departures.

    ``seconds`` is CPU time, which other processes do not affect.
    """
    nodes, workload, arrivals = _read(task)
    started = time.process_time()
    curve = replay(_placer(task, nodes, workload, arrivals), workload, arrivals)
    seconds = round(time.process_time() - started, 3)
    points = {point: allocated(curve, point) for point in POINTS}
    return ReplayResult(task.workload, task.policy, task.seed, points, curve.failed, seconds)


def measure_departures(task: Task) -> Stay:
    """Replay pods that leave again."""
    nodes, workload, arrivals = _read(task)
    schedule = departures.schedule(nodes, workload, task.seed, task.load)
    started = time.process_time()
    starts = departures.replay(_placer(task, nodes, workload, arrivals), schedule)
    seconds = round(time.process_time() - started, 3)
    stay = departures.summary(workload, task.policy, task.seed, task.load, schedule, starts)
    return replace(stay, seconds=seconds)


def side_by_side(work: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Run the tasks in one process for each CPU. Yield the outcomes in the order of the tasks."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        yield from pool.map(work, tasks)
