"""``gputile replay``: how much each placement policy gets onto the same GPUs, by a published protocol."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gputile.cli.output import Output, fail, write, write_json

if TYPE_CHECKING:
    from gputile.replay.results import Result
    from gputile.replay.study import Task

SEEDS = [42, 43, 44, 45, 46]
Outcome = TypeVar("Outcome")


def replay(
    trace: Annotated[Path, typer.Option("--trace", metavar="DIR", help="The directory with the trace's files.")],
    workload: Annotated[
        list[str] | None, typer.Option("--workload", metavar="NAME", help="Default: all that the directory has.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", metavar="NAME", help="Any of random, bestfit, fgd, binpack, spread, packing; default: all."
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="Default: 42 to 46.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Replays side by side; default: one for each CPU.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="What to print.")] = Output.TABLE,
) -> None:
    """Replay a GPU trace: pods arrive one by one until 130 % of the GPUs were asked for, and nothing departs.

    Prints the allocated part of the GPUs, per cent, when 95, 100 and 130 % had arrived, and the CPU seconds it took.
    """
    from gputile.replay.study import Task, measure
    from gputile.replay.trace import TraceError

    try:
        names = _workloads(trace, workload)
        policies = _policies(policy)
        tasks = [Task(trace, name, each, number) for name in names for each in policies for number in seed or SEEDS]
        results = list(_run(measure, tasks, jobs))
    except TraceError as error:
        fail(str(error))
    if output is Output.JSON:
        write_json(results)
    else:
        _print(results)


def _workloads(trace: Path, names: list[str] | None) -> list[str]:
    """Return the workloads to replay; every file is read once before any process starts, to fail early."""
    from gputile.replay.trace import read_nodes, read_workload, workloads

    read_nodes(trace)
    found = names or workloads(trace)
    for name in found:
        read_workload(trace, name)
    return found


def _policies(names: list[str] | None) -> list[str]:
    from gputile.replay.catalog import POLICIES

    unknown = next((name for name in names or () if name not in POLICIES), None)
    if unknown is not None:
        fail(f"--policy {unknown}: there are {', '.join(POLICIES)}")
    return names or list(POLICIES)


def _run(work: "Callable[[Task], Outcome]", tasks: "list[Task]", jobs: int | None) -> Iterator[Outcome]:
    """Do the tasks; a progress bar shows on a terminal only."""
    from rich.console import Console
    from rich.progress import track

    from gputile.replay.study import side_by_side

    console = Console(stderr=True)
    outcomes = side_by_side(work, tasks, jobs or os.cpu_count() or 1)
    hidden = not console.is_terminal
    return iter(track(outcomes, "Replaying", len(tasks), console=console, transient=True, disable=hidden))


def _print(results: "list[Result]") -> None:
    rows: list[tuple[str, ...]] = [("WORKLOAD", "POLICY", "SEEDS", "95 %", "100 %", "130 %", "FAILED PODS", "CPU S")]
    groups = dict.fromkeys((result.workload, result.policy) for result in results)
    for name, policy in groups:
        mine = [result for result in results if (result.workload, result.policy) == (name, policy)]
        points = [f"{mean(result.allocated[point] for result in mine):.2f}" for point in ("95", "100", "130")]
        failed = f"{mean(result.failed_pods for result in mine):.0f}"
        rows.append((name, policy, str(len(mine)), *points, failed, f"{mean(r.seconds for r in mine):.1f}"))
    _table(rows)


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))]
    for row in rows:
        write("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
