"""The benchmarks on traces: the bound of a workload, the mixes, and what `make bench` says of packing."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as benchmarks
from benchmarks import packing

from tests.unit.benchmarks.replay.traces import write_trace

pytestmark = pytest.mark.requirement("B3")


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
