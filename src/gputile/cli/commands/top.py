"""Runs ``gputile top``, which shows booked beside used for nodes, GPUs and pods, live."""

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.options.common import (
    REQUEST_TIMEOUT,
    Config,
    Context,
    Kubeconfig,
    Printed,
    Reach,
    RequestTimeout,
    namespace_option,
)
from gputile.cli.options.configuration import INSTALLED_IN, InstalledIn
from gputile.cli.output.streams import Output, fail, note, write, write_data
from gputile.cli.output.terminal import lines, lines_of_note, redraws, write_first_rows, write_table
from gputile.cli.reads.cluster_objects import ClusterFiles, Source, read_state
from gputile.cli.running import Watch, watched

if TYPE_CHECKING:
    from gputile.cli.reads.agent_usage import UsageLooks
    from gputile.cli.reads.cluster_objects import ClusterObjects
    from gputile.tools.web.top_rows import TopAnswer

_LINES_BESIDE = 3  # how many rows are left, that the cluster cannot be read, and the line of the cursor


class TopOrder(StrEnum):
    """What rows are sorted by; names ascend, all else descends."""

    BOOKED = "booked"
    USED = "used"
    COMPUTE = "compute"
    PODS = "pods"
    NAME = "name"


class TopOf(StrEnum):
    """What the rows are."""

    NODES = "nodes"
    GPUS = "gpus"
    PODS = "pods"


def top(
    of: Annotated[TopOf, typer.Argument(metavar="[nodes|gpus|pods]", help="What the rows are.")] = TopOf.NODES,
    sort: Annotated[TopOrder, typer.Option("--sort", help="What rows are sorted by.")] = TopOrder.BOOKED,
    namespace: Annotated[str, namespace_option("The pods' namespace; others are not listed, amounts count all.")] = "",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List pods of all namespaces, as without -n.")
    ] = False,
    watch: Watch = False,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once; what is no terminal gets it once in any case.")
    ] = False,
    cluster: ClusterFiles = None,
    output: Printed = Output.TABLE,
    config: Config = None,
    installed_in: InstalledIn = INSTALLED_IN,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    request_timeout: RequestTimeout = REQUEST_TIMEOUT,
) -> None:
    """Show nodes, GPUs or pods, those with most booked first, and again whenever that has changed.

    Booked is what pods have by the ledger, used what the nodes' agents measure; they are asked through the API server,
    for which you need the right to get pods/proxy. An interrupt ends it. -o json prints nodes, GPUs and pods once.
    """
    source = Source(cluster or (), config, Reach(kubeconfig, context, request_timeout), installed_in)
    if watch and (once or output.is_data):
        fail("--watch shows a table again and again: leave --once and -o out")
    once = once or "-" in source.files
    state = read_state(source)
    live = watch or (not output.is_data and not once and sys.stdout is not None and sys.stdout.isatty())
    looks = _looks(source)
    of_namespace = "" if all_namespaces else namespace
    found = _answer(state, sort, looks, of_namespace, twice=not live)
    if live:

        def again() -> "TopAnswer":
            return _answer(state.again(source), sort, looks, of_namespace, twice=False)

        watched(found, again, lambda each: _show(each, of, looks, lines() if redraws() else None), redraw=True)
    elif output.is_data:
        write_data(found, output)
        _say_why(looks)
    else:
        _show(found, of, looks, None)


def _looks(source: Source) -> "UsageLooks | None":
    """Return how use is looked at, None where the cluster is one in files."""
    if source.files:
        return None
    from gputile.cli.reads.agent_usage import UsageLooks

    return UsageLooks(source.reach, source.installed_in)


def _answer(
    state: "ClusterObjects", order: TopOrder, looks: "UsageLooks | None", namespace: str, *, twice: bool
) -> "TopAnswer":
    """Return the rows; of pods, those of one namespace, "" for all."""
    import msgspec

    from gputile.tools.web.state import page_state
    from gputile.tools.web.top_rows import top_answer

    page = page_state(state.configuration, state.nodes, state.pods, state.claims, time.time_ns())
    tiles = list(page.page.nodes.values())
    found = top_answer(tiles, order, looks.look(tiles, twice=twice) if looks is not None else {})
    pods = [pod for pod in found.pods if not namespace or pod.namespace == namespace]
    return msgspec.structs.replace(found, pods=pods)


def _say_why(looks: "UsageLooks | None") -> None:
    if looks is not None and looks.why is not None:
        note(looks.why)


def _show(found: "TopAnswer", of: TopOf, looks: "UsageLooks | None", most: int | None) -> None:
    """Print the rows, as many as there is room for on ``most`` lines; None: all."""
    from gputile.tools.web.top_rows import gpu_rows, node_rows, pod_rows

    rows = {
        TopOf.NODES: lambda: node_rows(found.nodes),
        TopOf.GPUS: lambda: gpu_rows(found.gpus),
        TopOf.PODS: lambda: pod_rows(found.pods),
    }[of]()
    if most is None:
        write_table(rows)
    else:
        beside = _LINES_BESIDE + (lines_of_note(looks.why) if looks is not None and looks.why is not None else 0)
        if left := write_first_rows(rows, most - beside):
            write(f"... and {left} more {of.value}\n")
    _say_why(looks)
