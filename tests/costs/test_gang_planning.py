"""What gangs may cost others: GPUs that nobody can use, time of the event loop, memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from gputile.api.core import Node, Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY
from gputile.controlplane.controller import gang_searches
from gputile.core.kube_predicates import predicates
from gputile.core.ledger.node_arrays import Changes
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan, plan_gang
from gputile.kube.objects import Applied, Deleted
from tests.costs.calls import calls
from tests.fakes.corebuilders import gpu_node, pod
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import BORN, Bench, member, placed, said

pytestmark = pytest.mark.requirement("M13", "B5")

INDEX = "batch.kubernetes.io/job-completion-index"
OLD = "2030-03-17T10:00:00Z"


def nodes(count: int, gpus: int) -> list[Node]:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return [gpu_node(f"n{i}", mode="cgpu", sizes=[4096] * gpus, allocatable=amounts) for i in range(count)]


def numbered(gang: str, number: int, size: int, **more: Any) -> Pod:
    """A pod as an indexed Job makes them: no two have the same labels."""
    labels = {
        GANG_NAME_LABEL: gang,
        GANG_SIZE_LABEL: str(size),
        "batch.kubernetes.io/job-completion-index": str(number),
    }
    return member(gang, number, size, labels=labels, **more)


def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each search for a gang's places adds how many pods it is for."""
    made: list[int] = []

    def counted(members: Sequence[GangCandidate], *more: Any) -> GangPlan:
        made.append(len(members))
        return plan_gang(members, *more)

    monkeypatch.setattr(gang_searches, "plan_gang", counted)
    return made


def test_a_gang_that_never_fits_is_told_so_though_all_its_pods_differ() -> None:
    """Labels that no rule looks at make no difference."""
    size = 33
    bench = Bench(*nodes(4, 8))
    for i in range(size):
        at_once(bench.view.pod_event(Applied(numbered("huge", i, size, born=OLD))))
    bench.gang("alone", 1)
    first = bench.round(7200)
    assert said(first) == {"huge": "GangTooLarge", "alone": "GangPlanned"}
    assert placed(first) == ["alone-0"], "no GPU is kept for a gang that can never start"
    assert placed(bench.round(14400)) == ["alone-0"], "nor ever"


def odd_gang(bench: Bench, name: str = "odd", born: str = OLD) -> None:
    """Pods of 5 and 3 on GPUs of 11: the sums are right, and yet they do not fit; no search in bounds can tell.

    Three GPUs at least have two pods of 5, and room for no other; seven are left for 7 of 5 and 14 of 3.
    """
    for i in range(28):
        asking = pod(f"{name}-{i}", mem=5 if i < 13 else 3)
        labels = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: "28"}
        meta = msgspec.structs.replace(asking.metadata, labels=labels, creation_timestamp=born)
        at_once(bench.view.pod_event(Applied(msgspec.structs.replace(asking, metadata=meta))))


def odd_bench() -> Bench:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return Bench(*(gpu_node(f"n{i}", mode="cgpu", sizes=[11 * 1024], allocatable=amounts) for i in range(10)))


def test_a_search_that_failed_is_not_made_again_before_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, made = odd_bench(), searches(monkeypatch)
    odd_gang(bench)
    bench.round(-20000)  # before its time: nothing is kept
    assert made == [28, 28], "here, and in the empty cluster"
    bench.round(-19999.8)
    assert len(made) == 2
    at_once(bench.view.pod_event(Applied(member("x", 0, 1, node="n0", labels={}))))
    at_once(bench.view.pod_event(Deleted(member("x", 0, 1, node="n0", labels={}))))
    bench.round(-19999.5)
    assert len(made) == 3, "something became free"


def test_a_round_ends_though_there_are_many_searches_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_searches, "MOST_SEARCHES", 2)
    bench = odd_bench()
    for gang in range(6):
        odd_gang(bench, f"odd{gang}", BORN)
    told: dict[str, str] = {}
    for _ in range(3):
        result = bench.round()
        told |= said(result)
        bench.view.freed_counter += 1  # what becomes free meanwhile does not begin the turn anew
    assert not result.unfinished
    assert len(told) == 6


def test_a_planned_gang_costs_in_proportion_to_its_pods() -> None:
    costs = {}
    for size in (40, 160):
        bench = Bench(*nodes(size // 8, 8))
        bench.gang("g", size)
        assert len(placed(bench.round())) == size
        costs[size] = calls(bench.round)
    assert costs[160] < 6 * costs[40]


def test_finished_pods_of_gangs_cost_nothing() -> None:
    bench = Bench()
    for i in range(500):
        at_once(bench.view.pod_event(Applied(member("g", i, 500, node="n", phase="Succeeded" if i % 2 else "Failed"))))
    snapshot = bench.view.snapshot()
    assert calls(lambda: bench.planner.plan(snapshot)) < 100
    assert not any(vars(bench.view.members).values())


def entries(root: object) -> int:
    """Return how many things the containers within hold, whatever class they are of."""
    count, seen, left = 0, set(), [root]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            count += len(each)
            left += each.values()
        elif isinstance(each, list | set | tuple | frozenset):
            count += len(each)
            left += each
        elif type(each).__module__.startswith("gputile"):
            left += [getattr(each, name) for name in _names(type(each)) if hasattr(each, name)]
            left += vars(each).values() if hasattr(each, "__dict__") else []
    return count


def _names(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        yield from getattr(base, "__slots__", ())


def test_what_came_and_went_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand pods; the logs of changes, which are of a fixed length, are shortened."""
    monkeypatch.setattr(predicates, "MOVES_KEPT", 8)
    monkeypatch.setattr(Changes.__init__, "__defaults__", (8,))
    bench, sizes = Bench(*nodes(2, 8)), []
    for turn in range(100):
        for i in range(100):
            gang = f"{turn}-{i // 4}"
            at_once(bench.view.pod_event(Applied(numbered(gang, i % 4, 4))))
            if i % 4 == 3:
                bench.round(turn)
                for each in range(4):
                    how = {"phase": "Succeeded" if each % 2 else "Failed", "node": "n0", "version": "9"}
                    at_once(bench.view.pod_event(Applied(numbered(gang, each, 4, **how))))
                    at_once(bench.view.pod_event(Deleted(numbered(gang, each, 4))))
        bench.round(turn)
        sizes.append(entries((bench.view, bench.planner)))
    assert max(sizes[20:]) <= max(sizes[:20]) * 1.02
