"""Pods that leave again: a queue small enough to follow by hand, and what holds for every one."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.departures import Schedule, replay, schedule, summary
from benchmarks.replay.engine import LivePlacer
from benchmarks.replay.trace import Nodes, Workload, read_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.well_known import Placement
from tests.conftest import examples
from tests.unit.benchmarks.replay.traces import TIMED, share, uniform, write_trace

pytestmark = pytest.mark.requirement("B3")

WHOLE, HALF, PAIR = share(1000), share(500), share(1000, gpus=2)


def made(*pods: tuple[int, float, float]) -> tuple[Workload, Schedule]:
    """Pods are (index in WHOLE, HALF, PAIR; created; runtime)."""
    shape = np.array([pod[0] for pod in pods], np.int64)
    created, runtime = np.array([pod[1:] for pod in pods]).T
    return Workload("made", (WHOLE, HALF, PAIR), shape, None), Schedule(shape, created, runtime)


def starts(gpus: int, *pods: tuple[int, float, float]) -> list[float]:
    workload, plan = made(*pods)
    begun: list[float] = replay(live(uniform(1, gpus, 10**6), workload), plan).tolist()
    return begun


def live(nodes: Nodes, workload: Workload, placement: Placement = "binpack") -> LivePlacer:
    return LivePlacer(ReplayCluster(nodes, workload.shapes, np.arange(len(nodes.gpus)), placement))


def test_a_pod_waits_until_one_leaves() -> None:
    assert starts(1, (0, 0, 10), (0, 1, 10), (0, 2, 10), (1, 30, 1)) == [0, 10, 20, 30]


def test_waiting_pods_start_in_the_order_in_which_they_came() -> None:
    """Who fits now may start before who came earlier and does not: there is no head of the line."""
    assert starts(2, (2, 0, 10), (2, 1, 10), (0, 2, 5), (1, 3, 5), (1, 40, 1)) == [0, 10, 20, 20, 40]
    assert starts(2, (0, 0, 10), (0, 0, 30), (2, 1, 10), (1, 2, 5), (1, 40, 1)) == [0, 0, 30, 10, 40]


def test_who_never_starts_has_failed() -> None:
    workload, plan = made((0, 0, 7200), (0, 1800, 10), (1, 3600, 10))
    started = replay(live(uniform(1, 1, 10**6), workload), plan)
    assert started.tolist() == [0, np.inf, np.inf]
    found = summary(workload, "binpack", 1, 1.0, plan, started)
    assert (found.failed_pods, found.waited_pods, found.wait_seconds) == (2, 0, 600)
    assert found.gpu_hours == 1
    assert found.gpu_hours_asked == 1


def timed(directory: Path, rows: str) -> Path:
    trace = write_trace(directory)
    (directory / "openb_pod_list_tiny.csv").write_text(TIMED.format(rows))
    return trace


@pytest.mark.parametrize("load", [0.5, 1.0, 3.0])
def test_the_schedule_asks_for_the_load_at_its_peak(tmp_path: Path, load: float) -> None:
    rows = "".join(f"p{i},1000,1,1,{500 + 100 * (i % 6)},{i * 1000},{i * 1000 + 700}\n" for i in range(50))
    trace = timed(tmp_path, rows)
    nodes, workload = uniform(10, 4, 10**6), read_workload(trace, "tiny")
    plan = schedule(nodes, workload, 7, load)
    assert (np.diff(plan.created) >= 0).all()
    assert (plan.runtime == 700).all()
    demand = np.array([shape.demand for shape in workload.shapes])[plan.pods]
    there = [demand[(plan.created <= t) & (plan.created + plan.runtime > t)].sum() for t in plan.created]
    assert max(there) == pytest.approx(load * nodes.milli, rel=0.1)
    assert plan.created.tolist() == schedule(nodes, workload, 7, load).created.tolist()


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.booleans(),
)
def test_no_gpu_is_ever_given_twice(pods: list[tuple[int, int, int]], count: int, priced: bool) -> None:
    """Nobody starts early, the GPUs are enough at every time, and no pod waits while it would fit an empty cluster."""
    nodes = uniform(count, 2, 10**6)
    workload, plan = made(*sorted(pods, key=lambda pod: pod[1]))
    started = replay(live(nodes, workload, "packing" if priced else "binpack"), plan)
    assert (started >= plan.created).all()
    demand = np.array([1000, 500, 2000])[plan.pods]
    ends = started + plan.runtime
    for moment in started[np.isfinite(started)]:
        assert demand[(started <= moment) & (ends > moment)].sum() <= nodes.milli
    end = plan.created[-1]
    for pod in np.flatnonzero(np.isinf(started)):
        others = (started <= end) & (ends > end)
        assert others.any(), f"pod {pod} waits and nobody runs"
