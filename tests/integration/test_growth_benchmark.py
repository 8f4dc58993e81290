"""The benchmark of growth measures every curve, on small clusters here, and writes what the documentation draws."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import growth
from docs.generator.growth import figures


def test_every_curve_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "growth.json"
    sizes = ["--nodes=10,20", "--gangs=2,4", "--gang-nodes=20"]
    monkeypatch.setattr(sys, "argv", ["growth", *sizes, f"--output={file}"])
    growth.main()
    written = json.loads(file.read_text("utf-8"))
    assert [each["what"] for each in written] == [each.what for each in figures()], "make growth draws other curves"
    assert {each["of"]: each["sizes"] for each in written} == {"nodes": [10, 20], "pods of the gang": [2, 4]}
    assert all(value > 0 for each in written for value in each["milliseconds"])
    printed, said = capsys.readouterr()
    assert len(printed.splitlines()) == len(written)
    assert said.splitlines() == ["10 nodes", "20 nodes", "gangs on 20 nodes"]


@pytest.mark.parametrize("sizes", ["", "5", "5,5", "9,3", "0,4", "a,b"])
def test_sizes_that_are_no_growth_are_refused(
    sizes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["growth", f"--nodes={sizes}"])
    with pytest.raises(SystemExit) as ended:
        growth.main()
    assert ended.value.code == 2
    assert "--nodes" in capsys.readouterr().err


def test_the_exponent_is_that_of_the_last_tenfold() -> None:
    assert growth.Curve("", "nodes", (1, 10, 100), (1.0, 1.0, 100.0)).exponent == pytest.approx(2)
    assert growth.Curve("", "nodes", (10, 32, 100, 316), (9.0, 1.0, 1.0, 10.0)).exponent == pytest.approx(1, rel=0.01)
    assert growth.Curve("", "nodes", (2, 4), (1.0, 2.0)).exponent == pytest.approx(1)
