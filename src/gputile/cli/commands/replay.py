"""Runs ``gputile replay``, which measures how much each placement policy gets onto the same GPUs."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gputile.cli.options import Printed, option, takes
from gputile.cli.running import unwinding_on_signals
from gputile.cli.terminal import Output, counted, fail, write_data, write_table

if TYPE_CHECKING:
    from gputile.tools.replay.departures import Stay
    from gputile.tools.replay.study import ReplayResult, Task

SEEDS = [42, 43, 44, 45, 46]
Outcome = TypeVar("Outcome")


class PodsWithoutGpus(StrEnum):
    """Who says where pods without GPUs go, for gputile's own policies."""

    RANKED = "ranked"
    SPREAD = "spread"


class ReplayScenario(StrEnum):
    """What happens to pods."""

    ARRIVALS = "arrivals"
    DEPARTURES = "departures"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line asks, in the order of the help."""

    trace: Annotated[Path, option("DIR", "The directory with the trace's files.")]
    workload: Annotated[list[str] | None, option("NAME", "Default: all that the directory has.")] = None
    policy: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Any of random, bestfit, fgd, binpack, spread, packing; default: all.",
            autocompletion=lambda: _policies(None),
        ),
    ] = None
    seed: Annotated[list[int] | None, option("N", "0 or more; default: 42 to 46.", min=0)] = None
    scenario: Annotated[
        ReplayScenario,
        typer.Option("--scenario", help="Whether pods only arrive, or leave again at the trace's own times."),
    ] = ReplayScenario.ARRIVALS
    load: Annotated[
        float, option("NUMBER", "For departures: peak demand over the cluster's GPUs.", min=0.01, max=100)
    ] = 1.0
    pods_without_gpus: Annotated[
        PodsWithoutGpus,
        typer.Option(
            "--pods-without-gpus",
            help="For binpack and packing: ranked by gputile like the others, or spread by kube-scheduler alone.",
        ),
    ] = PodsWithoutGpus.RANKED
    jobs: Annotated[int | None, option("NUMBER", "Replays side by side; default: one for each CPU.", min=1)] = None
    output: Printed = Output.TABLE


@takes(ReplayOptions)
def replay(options: ReplayOptions) -> None:
    """Replay a GPU trace, and measure how much each placement policy gets onto the same GPUs.

    Arrivals: pods come one by one until 130 % of the GPUs were asked for, and nothing leaves; prints the allocated part
    of the GPUs, per cent, when 95, 100 and 130 % had come. Departures: prints GPU-hours, and who waited.
    """
    from gputile.tools.replay.study import Task, measure, measure_departures
    from gputile.tools.replay.trace import TraceError

    try:
        names = _workloads(options.trace, options.workload, timed=options.scenario is ReplayScenario.DEPARTURES)
        work = [
            (name, each, number)
            for name in names
            for each in _policies(options.policy)
            for number in dict.fromkeys(options.seed or SEEDS)
        ]
        ranked = options.pods_without_gpus is PodsWithoutGpus.RANKED
        tasks = [Task(options.trace, *each, options.load, ranked) for each in work]
        with unwinding_on_signals(_kill_workers):
            if options.scenario is ReplayScenario.DEPARTURES:
                _show(list(_run(measure_departures, tasks, options.jobs)), options.output, _print_stays)
            else:
                _show(list(_run(measure, tasks, options.jobs)), options.output, _print)
    except TraceError as error:
        fail(str(error))


def _show(outcomes: list[Outcome], output: Output, print_table: Callable[[list[Outcome]], None]) -> None:
    if output.is_data:
        write_data(outcomes, output)
    else:
        print_table(outcomes)


def _workloads(trace: Path, names: list[str] | None, *, timed: bool) -> list[str]:
    """Return the workloads to replay, by default all, or all with times; reads every file, to fail early."""
    from gputile.tools.replay.trace import TraceError, read_nodes, read_workload, workloads

    read_nodes(trace)
    found = [read_workload(trace, name) for name in dict.fromkeys(names or workloads(trace))]
    if timed:
        lacking = [workload.name for workload in found if workload.lifetime is None]
        if lacking and (names or len(lacking) == len(found)):
            raise TraceError(f"workload {lacking[0]}: its file has no creation_time and deletion_time")
        found = [workload for workload in found if workload.lifetime is not None]
    return [workload.name for workload in found]


def _policies(names: list[str] | None) -> list[str]:
    from gputile.api.wording import unsupported
    from gputile.tools.replay.study import POLICIES

    unknown = next((name for name in names or () if name not in POLICIES), None)
    if unknown is not None:
        fail(f"--policy: {unsupported(unknown, POLICIES)}")
    return list(dict.fromkeys(names or POLICIES))


def _run(work: "Callable[[Task], Outcome]", tasks: "list[Task]", jobs: int | None) -> Iterator[Outcome]:
    """Do the tasks, and show how many are done."""
    from gputile.tools.replay.study import side_by_side

    return counted(side_by_side(work, tasks, jobs or os.cpu_count() or 1), "Replaying", len(tasks))


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


def _print(results: "list[ReplayResult]") -> None:
    rows: list[tuple[str, ...]] = [("WORKLOAD", "POLICY", "SEEDS", "95 %", "100 %", "130 %", "FAILED PODS", "CPU S")]
    groups = dict.fromkeys((result.workload, result.policy) for result in results)
    for name, policy in groups:
        mine = [result for result in results if (result.workload, result.policy) == (name, policy)]
        points = [_percent([result.allocated[point] for result in mine]) for point in ("95", "100", "130")]
        failed = f"{mean(result.failed_pods for result in mine):.0f}"
        rows.append((name, policy, str(len(mine)), *points, failed, f"{mean(r.seconds for r in mine):.1f}"))
    write_table(rows)


def _percent(values: "list[float | None]") -> str:
    """Return the mean, "-" where the demand was never just that in one of them: so few and large pods came."""
    known = [value for value in values if value is not None]
    return f"{mean(known):.2f}" if len(known) == len(values) else "-"


def _print_stays(stays: "list[Stay]") -> None:
    rows: list[tuple[str, ...]] = [
        ("WORKLOAD", "POLICY", "SEEDS", "GPU-HOURS", "OF ASKED", "WAITED PODS", "MEAN WAIT", "FAILED PODS", "CPU S")
    ]
    for name, policy in dict.fromkeys((stay.workload, stay.policy) for stay in stays):
        mine = [stay for stay in stays if (stay.workload, stay.policy) == (name, policy)]
        hours = mean(stay.gpu_hours for stay in mine)
        asked = mean(stay.gpu_hours_asked for stay in mine)
        part = f"{100 * hours / asked:.2f} %" if asked else "-"
        waits = f"{mean(stay.waited_pods for stay in mine):.0f}", f"{mean(stay.wait_seconds for stay in mine):.0f} s"
        failed = f"{mean(stay.failed_pods for stay in mine):.0f}"
        seconds = f"{mean(stay.seconds for stay in mine):.1f}"
        rows.append((name, policy, str(len(mine)), f"{hours:.0f}", part, *waits, failed, seconds))
    write_table(rows)
