"""``python -m benchmarks.replay`` as people run it: several seeds side by side, and departures."""

from pathlib import Path

import pytest
from benchmarks.replay.__main__ import main

from tests.unit.benchmarks.replay.traces import TIMED, write_trace

pytestmark = pytest.mark.requirement("B3")


def test_a_line_for_each_workload_and_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", str(write_trace(tmp_path)), "--policy", "fgd", "--policy", "packing"]
    main([*words, "--seed", "1", "--seed", "2"])
    found = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in found] == [["workload", "policy"], ["tiny", "fgd"], ["tiny", "packing"]]
    with pytest.raises(SystemExit, match="error: "):
        main([*words, "--workload", "none"])


def test_departures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path)
    rows = "".join(f"p{i},1000,1,1,600,{i * 100},{i * 100 + 50}\n" for i in range(20))
    (trace / "openb_pod_list_tiny.csv").write_text(TIMED.format(rows))
    main(["--trace", str(trace), "--departures", "1", "--policy", "packing", "--seed", "1"])
    found = capsys.readouterr().out.splitlines()
    assert found[1].split()[:2] == ["tiny", "packing"]
