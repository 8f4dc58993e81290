"""Runs ``gputile top``, which shows bookings and usage of nodes, GPUs and pods, live."""

import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.configuration import ClusterFiles, ClusterSource
from gputile.cli.options import Printed, namespace_option, takes
from gputile.cli.reads.cluster_objects import read_state
from gputile.cli.running import watched
from gputile.cli.terminal import (
    Output,
    lines,
    lines_of_note,
    note,
    redraws,
    write,
    write_data,
    write_first_rows,
    write_table,
)

if TYPE_CHECKING:
    from gputile.cli.reads.agent_usage import UsageLooks
    from gputile.cli.reads.cluster_objects import ClusterObjects
    from gputile.tools.web.top_rows import TopAnswer

_LINES_BESIDE = 3  # the number of hidden rows, a note on read errors, and the cursor


class TopOrder(StrEnum):
    """The sort key of the rows: names are ascending, all others descending."""

    BOOKED = "booked"
    USED = "used"
    COMPUTE = "compute"
    PODS = "pods"
    NAME = "name"


class TopOf(StrEnum):
    NODES = "nodes"
    GPUS = "gpus"
    PODS = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions(ClusterSource):
    of: Annotated[TopOf, typer.Argument(metavar="[nodes|gpus|pods]", help="What the rows are.")] = TopOf.NODES
    sort: Annotated[TopOrder, typer.Option("--sort", help="What rows are sorted by.")] = TopOrder.BOOKED
    namespace: Annotated[
        str, namespace_option("The pods' namespace; amounts still count the pods of all namespaces.")
    ] = ""
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List the pods of all namespaces; the default.")
    ] = False
    once: Annotated[
        bool,
        typer.Option("--once/--watch", " /-w", help="Show it once; the default if the output is not a terminal."),
    ] = False
    cluster: ClusterFiles = None
    output: Printed = Output.TABLE


@takes(TopOptions)
def top(options: TopOptions) -> None:
    """Show nodes, GPUs or pods, the most booked first, and refresh when they change.

    Booked amounts come from the ledger. Used amounts come from the agents of the nodes, which are read through the API
    server: you need the right to get pods/proxy. An interrupt ends it. -o json prints nodes, GPUs and pods once.
    """
    once = options.once or options.output.is_data or "-" in (options.cluster or ())
    state = read_state(options)
    live = not once and sys.stdout is not None and sys.stdout.isatty()
    looks = _looks(options)
    found = _answer(state, options, looks, twice=not live)
    if live:

        def again() -> "TopAnswer":
            return _answer(state.again(options), options, looks, twice=False)

        watched(found, again, lambda each: _show(each, options.of, looks, lines() if redraws() else None), redraw=True)
    elif options.output.is_data:
        write_data(found, options.output)
        _say_why(looks)
    else:
        _show(found, options.of, looks, None)


def _looks(options: TopOptions) -> "UsageLooks | None":
    """Return the reader of the agents' usage; None if the cluster is read from files."""
    if options.cluster:
        return None
    from gputile.cli.reads.agent_usage import UsageLooks

    return UsageLooks(options, options.installed_in)


def _answer(state: "ClusterObjects", options: TopOptions, looks: "UsageLooks | None", *, twice: bool) -> "TopAnswer":
    """Return all rows; rows of pods only for the requested namespace."""
    import msgspec

    from gputile.tools.web.state import page_state
    from gputile.tools.web.top_rows import top_answer

    page = page_state(state.configuration, state.nodes, state.pods, state.claims, time.time_ns())
    tiles = list(page.page.nodes.values())
    found = top_answer(tiles, options.sort, looks.look(tiles, twice=twice) if looks is not None else {})
    namespace = "" if options.all_namespaces else options.namespace
    pods = [pod for pod in found.pods if not namespace or pod.namespace == namespace]
    return msgspec.structs.replace(found, pods=pods)


def _say_why(looks: "UsageLooks | None") -> None:
    if looks is not None and looks.why is not None:
        note(looks.why)


def _show(found: "TopAnswer", of: TopOf, looks: "UsageLooks | None", most: int | None) -> None:
    """Print the rows in at most ``most`` lines; all of them if that is None."""
    from gputile.tools.web.top_rows import GPU_COLUMNS, NODE_COLUMNS, POD_COLUMNS, table_of

    match of:
        case TopOf.NODES:
            rows = table_of(NODE_COLUMNS, found.nodes)
        case TopOf.GPUS:
            rows = table_of(GPU_COLUMNS, found.gpus)
        case TopOf.PODS:
            rows = table_of(POD_COLUMNS, found.pods)
    if most is None:
        write_table(rows)
    else:
        beside = _LINES_BESIDE + (lines_of_note(looks.why) if looks is not None and looks.why is not None else 0)
        if left := write_first_rows(rows, most - beside):
            write(f"... and {left} more {of.value}\n")
    _say_why(looks)
