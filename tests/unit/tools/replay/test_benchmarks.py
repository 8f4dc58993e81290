"""The benchmarks on traces: the bound of a workload, the mixes, and what `make bench` says of packing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import __main__ as benchmarks
from benchmarks import packing
from benchmarks.bound import Relaxation
from benchmarks.packing import Mix, draw

from gputile.tools.replay.trace import Nodes, PodShape, Workload
from tests.unit.tools.replay.traces import share, stream, uniform, write_trace

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


@pytest.fixture
def only_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {packing.NAME: packing.run})
    monkeypatch.setattr(packing, "MIXES", (packing.Mix("as-it-is", "tiny"),))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "-o", "json"])


@pytest.mark.usefixtures("only_packing")
def test_without_a_trace_one_line_says_how_to_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(packing.TRACE, raising=False)
    benchmarks.main()
    out, said = capsys.readouterr()
    assert json.loads(out) == []
    assert said.splitlines() == [packing.LEFT_OUT]
    monkeypatch.setattr(sys, "argv", ["benchmarks", packing.NAME])
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main()


@pytest.mark.usefixtures("only_packing")
def test_with_a_trace_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(packing.TRACE, str(write_trace(tmp_path)))
    benchmarks.main()
    out, said = capsys.readouterr()
    (result,) = json.loads(out)
    assert (result["benchmark"], result["what"], result["against"]) == ("packing", "as-it-is: allocated", "FGD")
    assert said == ""
