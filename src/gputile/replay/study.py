"""Runs many replays side by side, one a process."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from gputile.replay.catalog import make_policy
from gputile.replay.engine import replay
from gputile.replay.results import Result, result
from gputile.replay.trace import read_arrivals, read_nodes, read_workload

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Task:
    """One replay to do; it travels to a process that reads the trace by itself."""

    trace: Path
    workload: str
    policy: str
    seed: int


def measure(task: Task) -> Result:
    """Replay arrivals without departures; seconds are CPU time, which other processes do not change."""
    nodes = read_nodes(task.trace)
    workload = read_workload(task.trace, task.workload)
    arrivals = read_arrivals(task.trace, nodes, workload, task.seed)
    started = time.process_time()
    curve = replay(nodes, workload, arrivals, make_policy(task.policy, nodes, workload, task.seed))
    return result(task.workload, task.policy, task.seed, curve, time.process_time() - started)


def side_by_side(work: Callable[[Task], Outcome], tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    """Do the tasks in up to ``jobs`` processes; yield the outcomes in the order of the tasks.

    ``work`` must be a function of a module. Processes are spawned, so that they inherit no threads.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn")))
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield from pool.map(work, tasks)
