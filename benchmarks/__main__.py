"""Runs benchmarks and prints their results.

The command is ``python -m benchmarks [NAME...] [-o table|json]``.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial

from benchmarks import (
    admission,
    agent,
    claims,
    controller_holds,
    core,
    extender_holds,
    growth,
    http,
    loop_holds,
    node,
    packing,
    page,
    preemption,
    queue,
    shell_speed,
    small_clusters,
    start,
    throughput,
    what_if,
)
from benchmarks.report import Result, as_json, as_table

BENCHMARKS: dict[str, Callable[[], Iterable[Result]]] = {
    admission.NAME: admission.run,
    agent.NAME: agent.run,
    claims.NAME: claims.run,
    core.NAME: core.run,
    growth.NAME: growth.run,
    http.NAME: http.run,
    loop_holds.NAME: partial(loop_holds.run, controller_holds.cases, extender_holds.cases),
    node.NAME: node.run,
    packing.NAME: packing.run,
    page.NAME: page.run,
    preemption.NAME: preemption.run,
    queue.NAME: queue.run,
    shell_speed.NAME: shell_speed.run,
    small_clusters.NAME: small_clusters.run,
    start.NAME: start.run,
    throughput.NAME: throughput.run,
    what_if.NAME: what_if.run,
}


def main() -> None:
    """Run the named benchmarks, or all benchmarks whose data is on this machine."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.name) - BENCHMARKS.keys())
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]}: there are {', '.join(BENCHMARKS)}")
    names = arguments.name or list(BENCHMARKS)
    if packing.NAME in names and not os.environ.get(packing.TRACE):
        if arguments.name:
            parser.error(packing.LEFT_OUT)
        names.remove(packing.NAME)
        print(packing.LEFT_OUT, file=sys.stderr)
    results = [result for name in names for result in BENCHMARKS[name]()]
    print(as_json(results) if arguments.output == "json" else as_table(results))


if __name__ == "__main__":
    main()
