"""Replays a trace on one cluster with several placement policies, and compares the results.

The command is ``python -m benchmarks.replay --trace DIR``.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.replay.departures import Stay
from benchmarks.replay.study import (
    POINTS,
    POLICIES,
    ReplayResult,
    Task,
    measure,
    measure_departures,
    side_by_side,
)
from benchmarks.replay.trace import TraceError, read_workload, workloads

SEEDS = (42, 43, 44, 45, 46)


def lines(results: Sequence[ReplayResult]) -> Iterator[str]:
    """Yield, for each workload and policy, a line with the means over the seeds."""
    points = "".join(f"{f'{point} %':>8}" for point in POINTS)
    yield f"{'workload':<24} {'policy':<8}{points}{'failed pods':>13}{'CPU s':>8}"
    for workload, policy in dict.fromkeys((each.workload, each.policy) for each in results):
        mine = [each for each in results if (each.workload, each.policy) == (workload, policy)]
        cells = "".join(f"{_mean(each.allocated[point] for each in mine):>8}" for point in POINTS)
        failed, seconds = (
            mean(each.failed_pods for each in mine),
            mean(each.seconds for each in mine),
        )
        yield f"{workload:<24} {policy:<8}{cells}{failed:>13.0f}{seconds:>8.1f}"


def _mean(values: Iterable[float | None]) -> str:
    """Return the mean, or "-" if a replay never reached the demand exactly.

    This happens with few and large pods.
    """
    found = list(values)
    known = [value for value in found if value is not None]
    return f"{mean(known):.2f}" if len(known) == len(found) else "-"


def lines_of_stays(stays: Sequence[Stay]) -> Iterator[str]:
    """Yield, for each workload and policy, a line with the means over the seeds."""
    yield (
        f"{'workload':<24} "
        f"{'policy':<8}{'GPU-hours':>11}{'of asked':>10}{'waited':>9}{'mean wait':>11}{'failed':>9}"
    )
    for workload, policy in dict.fromkeys((each.workload, each.policy) for each in stays):
        mine = [each for each in stays if (each.workload, each.policy) == (workload, policy)]
        hours, asked = (
            mean(each.gpu_hours for each in mine),
            mean(each.gpu_hours_asked for each in mine),
        )
        part = f"{100 * hours / asked:.2f} %" if asked else "-"
        waited, failed = (
            mean(each.waited_pods for each in mine),
            mean(each.failed_pods for each in mine),
        )
        wait = f"{mean(each.wait_seconds for each in mine):.0f} s"
        yield (
            f"{workload:<24} "
            f"{policy:<8}{hours:>11.0f}{part:>10}{waited:>9.0f}{wait:>11}{failed:>9.0f}"
        )


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help="default: all that the directory has"
    )
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    parser.add_argument("--seed", action="append", type=int, help="default: 42 to 46")
    parser.add_argument(
        "--departures", type=float, metavar="LOAD", help="pods leave again; the peak demand in GPUs"
    )
    parser.add_argument(
        "--spread", action="store_true", help="kube-scheduler places pods without GPUs"
    )
    arguments = parser.parse_args(words)
    try:
        names = arguments.workload or workloads(arguments.trace)
        if arguments.departures is not None:
            names = [
                name for name in names if read_workload(arguments.trace, name).lifetime is not None
            ]
        tasks = [
            Task(
                arguments.trace,
                name,
                policy,
                seed,
                arguments.departures or 1.0,
                not arguments.spread,
            )
            for name in names
            for policy in arguments.policy or POLICIES
            for seed in arguments.seed or SEEDS
        ]
        if arguments.departures is None:
            table = lines(list(side_by_side(measure, tasks)))
        else:
            table = lines_of_stays(list(side_by_side(measure_departures, tasks)))
    except TraceError as error:
        raise SystemExit(f"error: {error}") from error
    print("\n".join(table))


if __name__ == "__main__":
    main()
