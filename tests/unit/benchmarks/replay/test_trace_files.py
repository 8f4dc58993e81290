"""Whatever is in a trace's files: a workload, or an error that names the file and the rule."""

from pathlib import Path

import pytest
from benchmarks.replay.__main__ import main
from benchmarks.replay.departures import schedule
from benchmarks.replay.trace import (
    MOST_ARRIVALS,
    PODS_FILE,
    Arrivals,
    TraceError,
    draw_arrivals,
    read_arrivals,
    read_nodes,
    read_workload,
    workloads,
)

from tests.unit.benchmarks.replay.traces import NODES, TIMED, write_trace

HEAD = NODES.splitlines()[0] + "\n"


def read(directory: Path) -> Arrivals:
    nodes, workload = read_nodes(directory), read_workload(directory, "tiny")
    return read_arrivals(directory, nodes, workload, 42)


@pytest.mark.parametrize(
    ("nodes", "rule"),
    [
        (HEAD, "has a header, and no rows"),
        (HEAD + "n,1,1,0,T4\n", "none of its nodes has a GPU"),
        (HEAD + "n,-1,1,1,T4\n", "line 2: column cpu_milli should hold integers from 0"),
        (HEAD + 'n,1,1,2,"T4\nm,1,1,2,T4\n', "cannot be read as CSV"),
    ],
)
def test_a_node_that_cannot_be_is_refused_by_the_command(tmp_path: Path, nodes: str, rule: str) -> None:
    with pytest.raises(SystemExit, match=rule):
        main(["--trace", str(write_trace(tmp_path, nodes=nodes)), "--policy", "random"])


@pytest.mark.parametrize(
    ("pods", "rule"),
    [
        ("a,1,1,2,500,\n", "line 2: pod a: 2 GPUs of 500 milli-GPU each"),
        ("b,1,1,1,500,\n\na,1,1,1,-5,\n", "line 4: column gpu_milli"),
        ("a,1,1,0,500,\n", "0 GPUs of 500 milli-GPU each"),
        ("a,1,1,0,0,\n", "no pod asks for a GPU"),
    ],
)
def test_a_pod_that_cannot_be_is_refused(tmp_path: Path, pods: str, rule: str) -> None:
    with pytest.raises(TraceError, match=rule):
        read(write_trace(tmp_path, pods))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("seq", "nonsense\n"),
        ("seq", "42,0,99999999999999999999\n"),
        ("seq", "42,5\n"),
        ("noderank", "42,0,0\n"),
    ],
)
def test_a_broken_order_is_no_order_by_chance(tmp_path: Path, file: str, text: str) -> None:
    directory = write_trace(tmp_path)
    (directory / "arrivals" / f"openb_pod_list_tiny.{file}.csv").write_text(text)
    with pytest.raises(TraceError, match=f"tiny.{file}.csv: (line [12]|seed 42)"):
        read(directory)


def test_more_arrivals_than_can_be_replayed_are_refused_before_they_are_drawn(tmp_path: Path) -> None:
    many = HEAD + "".join(f"n{i},8000,1000,64,T4\n" for i in range(200))
    directory = write_trace(tmp_path, "a,1000,1,1,1,\n", nodes=many)
    (directory / "openb_pod_list_tiny.csv").write_text(TIMED.format("a,1,1,1,1,0,50\n"))
    nodes, workload = read_nodes(directory), read_workload(directory, "tiny")
    for draw in (lambda: draw_arrivals(nodes, workload, 42), lambda: schedule(nodes, workload, 42, 100.0)):
        with pytest.raises(TraceError, match=f"{MOST_ARRIVALS:,} are the most that is replayed"):
            draw()


def test_without_a_list_of_pods_there_is_nothing_to_replay(tmp_path: Path) -> None:
    """A header without rows, and exit code 0, would read as a result."""
    directory = write_trace(tmp_path)
    for path in directory.glob(PODS_FILE.format("*")):
        path.unlink()
    with pytest.raises(TraceError, match="it holds no list of pods"):
        workloads(directory)
    with pytest.raises(TraceError, match="no such directory"):
        workloads(directory / "nothing")
    with pytest.raises(SystemExit, match="error: "):
        main(["--trace", str(directory), "--policy", "random"])
