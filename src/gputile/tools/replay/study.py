"""Runs many replays in parallel processes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from threading import Thread
from typing import Annotated, Final, TypeVar, get_args

import msgspec
import numpy as np

from gputile.api.well_known import Placement
from gputile.api.wording import described
from gputile.tools.replay import departures
from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.departures import Stay
from gputile.tools.replay.engine import (
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
from gputile.tools.replay.trace import Arrivals, Nodes, Workload, read_arrivals, read_nodes, read_workload

POINTS = (95, 100, 130)
"""Arrived demand, per cent of the cluster's GPUs, at which policies are compared."""


class ReplayResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a replay: ``allocated`` percent of the cluster's GPUs, by the percent that had arrived."""

    workload: Annotated[str, described("Which workload of the trace.")]
    policy: Annotated[str, described("Which placement policy.")]
    seed: Annotated[int, described("The seed of the order of the pods.")]
    allocated: Annotated[
        dict[str, float | None],
        described("Allocated GPUs, per cent, by the per cent asked for; null where it was never just that."),
    ]
    failed_pods: Annotated[int, described("Pods that fitted nowhere when they came.")]
    seconds: Annotated[float, described("CPU time of the replay.")]


def allocated(curve: Curve, point: int) -> float | None:
    """Return the mean of allocated % over the arrivals at which the demand rounds to ``point`` %; None for none."""
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
    name: str, nodes: Nodes, workload: Workload, arrivals: Arrivals, seed: int, *, ranked: bool = True
) -> Placer:
    """Return the placer of a policy on an empty cluster.

    ``packing`` learns the workload as it arrives; FGD knows it from the start. ``ranked``: gputile's policies rank
    nodes for pods without GPUs too.
    """
    if name in _LIVE:
        return LivePlacer(ReplayCluster(nodes, workload.shapes, arrivals.rank, _LIVE[name]), ranked=ranked)
    cluster = ReplayCluster(nodes, workload.shapes, arrivals.rank)
    return ReferencePlacer(cluster, _REFERENCES[name](workload, seed))


Outcome = TypeVar("Outcome")
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Task:
    """A replay for another process, which reads the trace itself."""

    trace: Path
    workload: str
    policy: str
    seed: int
    load: float = 1.0
    """Peak demand in ``measure_departures``, as a multiple of the GPUs."""
    ranked: bool = True
    """Whether gputile's own policies rank nodes for pods without GPUs; else kube-scheduler spreads these."""


def _read(task: Task) -> tuple[Nodes, Workload, Arrivals]:
    nodes, workload = read_nodes(task.trace), read_workload(task.trace, task.workload)
    return nodes, workload, read_arrivals(task.trace, nodes, workload, task.seed)


def _placer(task: Task, nodes: Nodes, workload: Workload, arrivals: Arrivals) -> Placer:
    return make_placer(task.policy, nodes, workload, arrivals, task.seed, ranked=task.ranked)


def measure(task: Task) -> ReplayResult:
    """Replay arrivals without departures; seconds are CPU time, which does not depend on other processes."""
    nodes, workload, arrivals = _read(task)
    started = time.process_time()
    curve = replay(_placer(task, nodes, workload, arrivals), workload, arrivals)
    seconds = round(time.process_time() - started, 3)
    points = {str(point): allocated(curve, point) for point in POINTS}
    return ReplayResult(task.workload, task.policy, task.seed, points, curve.failed, seconds)


def measure_departures(task: Task) -> Stay:
    """Replay pods that end."""
    nodes, workload, arrivals = _read(task)
    schedule = departures.schedule(nodes, workload, task.seed, task.load)
    started = time.process_time()
    placer = _placer(task, nodes, workload, arrivals)
    starts = departures.replay(placer, schedule)
    seconds = round(time.process_time() - started, 3)
    stay = departures.summary(workload, task.policy, task.seed, task.load, schedule, starts)
    return msgspec.structs.replace(stay, seconds=seconds)


def side_by_side(work: Callable[[Task], Outcome], tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    """Run the tasks in up to ``jobs`` processes; yield the outcomes in the order of the tasks.

    ``work`` must be a function of a module. Processes are spawned, so that they inherit no threads. They ignore an
    interrupt from the terminal: the parent ends them, and they end by themselves if it is gone.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with ExitStack() as stack:
        with _signals_put_off():
            pool = stack.enter_context(
                ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn"), initializer=_end_with_parent)
            )
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            # Not ``map``, which cancels from this thread what the pool's own thread is marking as broken.
            outcomes = [pool.submit(work, task) for task in tasks]
        for outcome in outcomes:
            yield outcome.result()


def _end_with_parent() -> None:
    """End this process when its parent has ended in any way; otherwise it would wait for its queue for ever."""
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Block the signals that end programs within the block, also for the processes that it starts.

    A process that is only half started is not yet in the list of those to end, and would print a traceback.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    ensure_running()  # the resource tracker inherits the mask; its start unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
