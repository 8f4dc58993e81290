"""``gputile replay``: how much each placement policy gets onto the same GPUs, by a published protocol."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.output import Output, fail, write, write_json

if TYPE_CHECKING:
    from gputile.replay.engine import Policy
    from gputile.replay.results import Result
    from gputile.replay.trace import Nodes, Workload

SEEDS = [42, 43, 44, 45, 46]
POLICIES = ("random", "bestfit", "fgd", "binpack", "spread")


def replay(
    trace: Annotated[Path, typer.Option("--trace", metavar="DIR", help="The directory with the trace's files.")],
    workload: Annotated[
        list[str] | None, typer.Option("--workload", metavar="NAME", help="Default: all that the directory has.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="NAME", help=f"Any of {', '.join(POLICIES)}; default: all.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="Default: 42 to 46.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="What to print.")] = Output.TABLE,
) -> None:
    """Replay a GPU trace: pods arrive one by one until 130 % of the GPUs were asked for, and nothing departs.

    Prints the allocated part of the GPUs, per cent, when 95, 100 and 130 % had arrived.
    """
    from gputile.replay.trace import TraceError, read_nodes, read_workload, workloads

    chosen = policy or list(POLICIES)
    unknown = next((name for name in chosen if name not in POLICIES), None)
    if unknown is not None:
        fail(f"--policy {unknown}: there are {', '.join(POLICIES)}")
    try:
        nodes = read_nodes(trace)
        found = [read_workload(trace, name) for name in workload or workloads(trace)]
        results = _run(trace, nodes, found, chosen, seed or SEEDS)
    except TraceError as error:
        fail(str(error))
    if output is Output.JSON:
        write_json(results)
    else:
        _print(results)


def _run(trace: Path, nodes: "Nodes", found: "list[Workload]", policies: list[str], seeds: list[int]) -> "list[Result]":
    from rich.console import Console
    from rich.progress import track

    from gputile.replay.engine import replay as run
    from gputile.replay.results import result
    from gputile.replay.trace import read_arrivals

    console = Console(stderr=True)
    work = [(each, name, seed) for each in found for name in policies for seed in seeds]
    results = []
    for each, name, seed in track(work, "Replaying", console=console, transient=True, disable=not console.is_terminal):
        arrivals = read_arrivals(trace, nodes, each, seed)
        started = time.perf_counter()
        curve = run(nodes, each, arrivals, _policy(name, each, seed))
        results.append(result(each.name, name, seed, curve, time.perf_counter() - started))
    return results


def _policy(name: str, workload: "Workload", seed: int) -> "Policy":
    from gputile.replay.policies import BestFit, Binpack, Fgd, Random, Spread

    makers: dict[str, Callable[[], Policy]] = {
        "random": lambda: Random(seed),
        "bestfit": BestFit,
        "fgd": lambda: Fgd(workload),
        "binpack": Binpack,
        "spread": Spread,
    }
    return makers[name]()


def _print(results: "list[Result]") -> None:
    rows: list[tuple[str, ...]] = [("WORKLOAD", "POLICY", "SEEDS", "95 %", "100 %", "130 %", "FAILED PODS", "SECONDS")]
    groups = dict.fromkeys((result.workload, result.policy) for result in results)
    for name, policy in groups:
        mine = [result for result in results if (result.workload, result.policy) == (name, policy)]
        points = [f"{mean(result.allocated[point] for result in mine):.2f}" for point in ("95", "100", "130")]
        failed = f"{mean(result.failed_pods for result in mine):.0f}"
        rows.append((name, policy, str(len(mine)), *points, failed, f"{mean(r.seconds for r in mine):.1f}"))
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))]
    for row in rows:
        write("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
