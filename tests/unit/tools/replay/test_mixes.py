"""The mixes of ``benchmarks.packing`` are what their names say."""

import numpy as np
import pytest
from benchmarks.packing import Mix, draw

from gputile.tools.replay.trace import Workload
from tests.unit.tools.replay.traces import share, stream, uniform

pytestmark = pytest.mark.requirement("B3")

T4 = frozenset({"T4"})
SHAPES = (share(500), share(1000), share(1000, gpus=4), share(1000, models=T4), share(0, gpus=0), share(700, models=T4))


@pytest.fixture
def source() -> Workload:
    return stream(uniform(200, 8, 10**6), (SHAPES, 1.0))[0]


def part(workload: Workload, holds: list[bool]) -> float:
    counts = np.bincount(workload.shape, minlength=len(workload.shapes))
    demand = counts * np.array([shape.demand for shape in workload.shapes])
    return float(demand[np.array(holds)].sum() / demand.sum())


def test_each_part_of_the_demand_is_as_asked(source: Workload) -> None:
    mix = draw(Mix("some", "", shares=0.6, without_gpu=0.5), source, 20000)
    assert part(mix, [0 < shape.milli < 1000 for shape in mix.shapes]) == pytest.approx(0.6, abs=0.03)
    plain = sum(mix.shapes[i].gpus == 0 for i in mix.shape.tolist())
    assert plain / (len(mix.shape) - plain) == pytest.approx(0.5, abs=0.01)
    assert part(draw(Mix("m", "", several=0.2), source, 20000), [s.gpus > 1 for s in mix.shapes]) == pytest.approx(
        0.2, abs=0.03
    )
    assert part(draw(Mix("t", "", models=0.1), source, 20000), [bool(s.models) for s in mix.shapes]) == pytest.approx(
        0.1, abs=0.03
    )


def test_what_is_not_asked_for_stays_and_draws_repeat(source: Workload) -> None:
    one, two = (draw(Mix("as it is", ""), source, 20000) for _ in range(2))
    assert one.shape.tolist() == two.shape.tolist()
    for holds in ([shape.gpus > 1 for shape in one.shapes], [bool(shape.models) for shape in one.shapes]):
        assert part(one, holds) == pytest.approx(part(source, holds), abs=0.03)
    assert sum(one.shapes[i].demand for i in one.shape.tolist()) == pytest.approx(20000 * 1000, rel=0.02)
