"""``gputile replay`` as people run it: several seeds side by side, JSON, departures."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gputile.cli.app import app
from gputile.tools.replay.study import POLICIES, Task, measure, side_by_side
from tests.unit.tools.replay.traces import TIMED, write_trace

pytestmark = pytest.mark.requirement("B3")


def run(trace: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", "--trace", str(trace), *arguments])


def timed(directory: Path) -> Path:
    trace = write_trace(directory)
    rows = "".join(f"p{i},1000,1,1,600,{i * 100},{i * 100 + 50}\n" for i in range(20))
    (directory / "openb_pod_list_tiny.csv").write_text(TIMED.format(rows))
    return trace


def test_json_has_one_object_a_replay_with_exactly_these_fields(tmp_path: Path) -> None:
    result = run(write_trace(tmp_path), "--seed", "42", "--seed", "7", "-o", "json", "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(each["policy"], each["seed"]) for each in found] == [(name, seed) for name in POLICIES for seed in (42, 7)]
    for each in found:
        assert set(each) == {"workload", "policy", "seed", "allocated", "failedPods", "seconds"}
        assert set(each["allocated"]) == {"95", "100", "130"}
        assert isinstance(each["failedPods"], int)
        assert each["seconds"] >= 0


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    trace = write_trace(tmp_path)
    tasks = [Task(trace, "tiny", policy, seed) for policy in ("packing", "random") for seed in (42, 43)]
    apart, alone = list(side_by_side(measure, tasks, 2)), list(side_by_side(measure, tasks, 1))
    assert [(r.policy, r.seed, r.failed_pods) for r in apart] == [(r.policy, r.seed, r.failed_pods) for r in alone]


def blocked_signals(_: object) -> list[int]:
    """Return the signals that do not reach the process that this runs in."""
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_an_interrupt_from_the_terminal_reaches_no_process_that_is_just_starting() -> None:
    """In a program that has started no process yet: Python's tracker of resources unblocks signals as it starts."""
    program = f"""
from {__name__} import blocked_signals
from gputile.tools.replay.study import side_by_side
if __name__ == "__main__":
    print(list(side_by_side(blocked_signals, [1, 2, 3], 2)))
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    for blocked in json.loads(done.stdout):
        assert {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT} <= set(blocked)


def test_what_is_named_twice_is_replayed_once_and_printed_as_a_table(tmp_path: Path) -> None:
    words = ["--workload", "tiny", "--policy", "fgd", "--seed", "1"]
    result = run(write_trace(tmp_path), *words, *words, "--policy", "packing", "--jobs", "1")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["WORKLOAD", "POLICY", "SEEDS"]
    assert [line.split()[:3] for line in lines[1:]] == [["tiny", "fgd", "1"], ["tiny", "packing", "1"]]
    assert result.stderr == "", "no progress bar off a terminal"


def test_departures(tmp_path: Path) -> None:
    result = run(timed(tmp_path), "--scenario", "departures", "--policy", "packing", "--seed", "1", "-o", "json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert (found["workload"], found["policy"], found["seed"], found["load"]) == ("tiny", "packing", 1, 1.0)
    assert 0 < found["gpuHours"] <= found["gpuHoursAsked"]
    assert {"waitedPods", "waitSeconds", "failedPods"} <= set(found)
    table = run(timed(tmp_path), "--scenario", "departures", "--policy", "packing", "--seed", "1")
    assert table.stdout.splitlines()[0].startswith("WORKLOAD")
