"""``gputile replay`` as people run it: several seeds side by side, JSON, the plot, departures."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gputile.cli.app import app
from gputile.tools.replay.engine import replay_with_trail, steps
from gputile.tools.replay.policies import Fragments
from gputile.tools.replay.study import POLICIES, Task, make_placer, measure, side_by_side
from gputile.tools.replay.trace import read_arrivals, read_nodes, read_workload
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


def test_the_table_has_a_line_for_each_policy_and_no_progress_bar_off_a_terminal(tmp_path: Path) -> None:
    result = run(write_trace(tmp_path), "--policy", "fgd", "--policy", "packing", "--jobs", "1")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["WORKLOAD", "POLICY", "SEEDS"]
    assert [line.split()[:3] for line in lines[1:]] == [["tiny", "fgd", "5"], ["tiny", "packing", "5"]]
    assert result.stderr == ""


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


@pytest.mark.parametrize("policy", ["fgd", "packing"])
def test_fragments_followed_node_by_node_are_those_of_the_whole_cluster(tmp_path: Path, policy: str) -> None:
    trace = write_trace(tmp_path)
    nodes, workload = read_nodes(trace), read_workload(trace, "tiny")
    arrivals = read_arrivals(trace, nodes, workload, 42)
    curve, trail = replay_with_trail(make_placer(policy, nodes, workload, arrivals, 42), workload, arrivals)
    placer = make_placer(policy, nodes, workload, arrivals, 42)
    cluster = placer.cluster
    whole = []
    for _ in steps(placer, workload, arrivals):
        fragments = Fragments(workload)
        lost = fragments.of(cluster.cpu, cluster.free(), fragments.allowed(cluster)).sum()
        whole.append(100 * lost / nodes.milli)
    assert trail.arrived == pytest.approx((100 * curve.arrived / nodes.milli).tolist())
    assert trail.fragmented == pytest.approx(whole)


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_plot(tmp_path: Path, suffix: str, start: bytes) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    file = tmp_path / f"plot{suffix}"
    result = run(write_trace(tmp_path), "--policy", "fgd", "--policy", "packing", "--jobs", "1", "--plot", str(file))
    assert result.exit_code == 0, result.stderr
    assert file.read_bytes().startswith(start)
    assert len(result.stdout.splitlines()) == 3, "the table comes with the plot"


def test_a_plot_that_cannot_be_drawn_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write_trace(tmp_path)
    assert ".svg or .png" in run(trace, "--plot", str(tmp_path / "plot.gif")).stderr
    assert "no such directory" in run(trace, "--plot", str(tmp_path / "nowhere" / "plot.svg")).stderr
    assert "--scenario" in run(timed(tmp_path), "--plot", "p.svg", "--scenario", "departures").stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = run(trace, "--plot", str(tmp_path / "plot.svg"))
    assert refused.exit_code == 2
    assert "gputile[plot]" in refused.stderr


@pytest.mark.parametrize(("target", "why"), [(".", "Is a directory"), ("nowhere/x", "No such file or directory")])
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, target: str, why: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    (tmp_path / "plot.svg").symlink_to(target)
    refused = run(write_trace(tmp_path), "--jobs", "1", "--plot", str(tmp_path / "plot.svg"))
    assert (refused.exit_code, refused.stdout) == (2, ""), refused.stderr
    assert refused.stderr == f"error: {tmp_path / 'plot.svg'}: {why}\n"


def test_the_table_is_there_when_the_plot_cannot_be_written_at_last(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    (tmp_path / "plot.svg").symlink_to("/dev/full")
    failed = run(write_trace(tmp_path), "--policy", "fgd", "--jobs", "1", "--plot", str(tmp_path / "plot.svg"))
    assert (failed.exit_code, len(failed.stdout.splitlines())) == (2, 2)
    assert failed.stderr.endswith("plot.svg: No space left on device\n")


def test_what_is_named_twice_is_replayed_once(tmp_path: Path) -> None:
    words = ["--workload", "tiny", "--policy", "fgd", "--seed", "1"]
    result = run(write_trace(tmp_path), *words, *words, "--jobs", "1", "-o", "json")
    assert len(json.loads(result.stdout)) == 1


def test_departures(tmp_path: Path) -> None:
    result = run(timed(tmp_path), "--scenario", "departures", "--policy", "packing", "--seed", "1", "-o", "json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert (found["workload"], found["policy"], found["seed"], found["load"]) == ("tiny", "packing", 1, 1.0)
    assert 0 < found["gpuHours"] <= found["gpuHoursAsked"]
    assert {"waitedPods", "waitSeconds", "failedPods"} <= set(found)
    table = run(timed(tmp_path), "--scenario", "departures", "--policy", "packing", "--seed", "1")
    assert table.stdout.splitlines()[0].startswith("WORKLOAD")


def test_departures_need_times(tmp_path: Path) -> None:
    result = run(write_trace(tmp_path), "--scenario", "departures")
    assert result.exit_code == 2
    assert "creation_time" in result.stderr
