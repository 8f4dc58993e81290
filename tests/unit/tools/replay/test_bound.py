"""The linear program behind how much of a workload could be allocated, on clusters that can be reckoned by hand."""

import numpy as np
import pytest
from benchmarks.bound import Relaxation

from gputile.tools.replay.trace import Nodes, PodShape, Workload

pytestmark = pytest.mark.requirement("B3")


def nodes(*each: tuple[int, int, str]) -> Nodes:
    cpu, gpus, models = zip(*each, strict=True)
    return Nodes(np.array(cpu), np.array([10**6] * len(each)), np.array(gpus), models)


def workload(*shapes: tuple[int, int, int, str]) -> Workload:
    found = tuple(
        PodShape(cpu, 1, gpus, milli, frozenset({model} if model else ())) for cpu, gpus, milli, model in shapes
    )
    return Workload("w", found, np.arange(len(found)), None)


@pytest.mark.parametrize(
    ("cluster", "pods", "part"),
    [
        ([(10**6, 5, "T4")], [(1, 1, 1000, "")], 1.0),
        ([(10**6, 5, "T4")], [(1, 1, 600, "")], 0.6),
        ([(10**6, 5, "T4")], [(1, 1, 600, ""), (1, 1, 400, "")], 1.0),
        ([(10**6, 5, "T4")], [(1, 1, 700, ""), (1, 1, 400, "")], 1.1 / 1.5),
        ([(2500, 5, "T4")], [(1000, 1, 1000, "")], 0.5),
        ([(10**6, 4, "T4"), (10**6, 4, "A10")], [(1, 1, 1000, "T4"), (1, 2, 1000, "T4")], 0.5),
        ([(10**6, 4, "T4"), (3000, 0, "")], [(1, 1, 1000, ""), (1000, 0, 0, "")], 1.0),
    ],
)
def test_what_could_be_allocated(
    cluster: list[tuple[int, int, str]], pods: list[tuple[int, int, int, str]], part: float
) -> None:
    assert Relaxation(nodes(*cluster), workload(*pods)).solve() == pytest.approx(part, abs=1e-6)
