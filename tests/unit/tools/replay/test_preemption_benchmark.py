"""The peers of the choice of victims choose what they claim to, and the benchmark compares like with like."""

from collections.abc import Iterable
from itertools import chain, combinations

import pytest
from benchmarks.preemption import compare_gangs, compare_single
from benchmarks.victim_peers import Asked, Held, OpenNode, best_victims, scheduler_victims
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.requirement("B5")

NOW = 1000.0
pods = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9), st.integers(0, 2), st.integers(0, 900)), max_size=6)


def node(held: list[tuple[int, int, int, int]], name: str = "") -> OpenNode:
    """Return a node of two GPUs; pods of which a GPU has no room left for are left out."""
    free, there = [1000, 1000], []
    for number, (gpu, size, priority, started) in enumerate(held):
        if free[gpu] >= 100 * size:
            free[gpu] -= 100 * size
            there.append(Held(f"{name}{number}", ((gpu, 100 * size),), priority, float(started)))
    return OpenNode(tuple(free), tuple(there))


def room(each: OpenNode, asked: Asked, gone: Iterable[Held]) -> int:
    """Return how many of the pods have room on a node of two GPUs."""
    free = list(each.free)
    for pod in gone:
        for gpu, milli in pod.shares:
            free[gpu] += milli
    found = [left // asked.milli for left in free]
    return sum(found) if asked.gpus == 1 else min(found)


@given(pods, pods, st.integers(1, 10), st.integers(1, 2), st.integers(1, 3))
def test_the_integer_program_finds_the_best_of_all_sets(
    first: list[tuple[int, int, int, int]],
    second: list[tuple[int, int, int, int]],
    size: int,
    gpus: int,
    count: int,
) -> None:
    nodes, asked = {"a": node(first, "a"), "b": node(second, "b")}, Asked(gpus, 100 * size, 2, count)
    if sum(room(each, asked, ()) for each in nodes.values()) >= count:
        return  # nobody asks then
    lower = [pod for each in nodes.values() for pod in each.held if pod.priority < 2]
    sets = chain.from_iterable(combinations(lower, number) for number in range(len(lower) + 1))
    costs = [
        (max((pod.priority for pod in gone), default=-1), len(gone), sum(pod.lost(NOW) for pod in gone))
        for gone in sets
        if sum(room(each, asked, [pod for pod in gone if pod in each.held]) for each in nodes.values()) >= count
    ]
    found = best_victims(nodes, asked, NOW)
    assert (found is None) == (not costs)
    if found is not None:
        cost = max(pod.priority for pod in found), len(found), sum(pod.lost(NOW) for pod in found)
        assert cost[:2] == min(costs)[:2]
        assert cost[2] == pytest.approx(min(costs)[2], abs=1.0)


def test_kube_scheduler_spares_the_most_important_and_then_those_that_started_first() -> None:
    old, young = (Held(name, ((0, 400),), 0, started) for name, started in (("old", 1.0), ("young", 9.0)))
    dear = Held("dear", ((0, 200),), 1, 5.0)
    found = scheduler_victims({"n": OpenNode((0,), (old, young, dear))}, Asked(1, 400, 2))
    assert found == ("n", [young])
    assert scheduler_victims({"n": OpenNode((0,), (old, young, dear))}, Asked(1, 400, 0)) is None


def test_the_benchmark_compares_like_with_like() -> None:
    single = compare_single(40)
    assert single["best"].evictions > 0
    assert single["gputile"].evictions <= single["kube-scheduler"].evictions
    gangs = compare_gangs(15)
    assert gangs["best"].best > 0
