"""Runs ``gputile top`` and ``gputile web``, which show live bookings and usage of the GPUs."""

import sys
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.configuration import ClusterFiles, ClusterSource, LiveSource, read_given
from gputile.cli.options import AllNamespaces, PodsNamespace, Printed, option, takes
from gputile.cli.reads.cluster_view import read_state, watched
from gputile.cli.terminal import (
    Output,
    fail,
    lines,
    lines_of_note,
    note,
    redraws,
    write,
    write_data,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gputile.cli.reads.cluster_view import ClusterObjects
    from gputile.kube.client import Connection
    from gputile.tools.web.questions import ClusterSnapshot
    from gputile.tools.web.records import NodeTile, NodeUsage
    from gputile.tools.web.top_rows import TopAnswer

PORT = 8420
HEALTH_PORT = 8086
_OTHER_LINES = 3  # lines for the number of hidden rows, a note on read errors, and the cursor


class TopOrder(StrEnum):
    """The sort key of the rows. NAME sorts in ascending, every other key in descending order."""

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
    of: Annotated[
        TopOf, typer.Argument(metavar="[nodes|gpus|pods]", help="The objects to list.")
    ] = TopOf.NODES
    sort: Annotated[TopOrder, typer.Option("--sort", help="The column to sort by.")] = (
        TopOrder.BOOKED
    )
    namespace: PodsNamespace = ""
    all_namespaces: AllNamespaces = False
    once: Annotated[
        bool,
        typer.Option(
            "--once/--watch",
            " /-w",
            help="Print the table once and exit. This is the default if stdout is not a terminal.",
        ),
    ] = False
    cluster: ClusterFiles = None
    output: Printed = Output.TABLE


@takes(TopOptions)
def top(options: TopOptions) -> None:
    """Show nodes, GPUs or pods, the most booked first, and refresh the table when it changes.

    Booked amounts come from the pods' allocations. Used amounts come from the nodes' agents, which
    are read through the API server. This requires the right to get pods/proxy. Ctrl-C ends the
    command. -o json prints nodes, GPUs and pods once.
    """
    once = options.once or options.output.is_data or "-" in (options.cluster or ())
    live = not once and sys.stdout is not None and sys.stdout.isatty()
    shown = _Top(options)
    state = read_state(options)
    found = shown.answer(state, twice=not live)
    if live:
        watched(
            found,
            lambda: shown.answer(state.reread(options), twice=False),
            lambda answer: shown.write(answer, lines() if redraws() else None),
            redraw=True,
        )
    elif options.output.is_data:
        write_data(found, options.output)
        shown.write_unknown_usage()
    else:
        shown.write(found, None)


class _Top:
    """The rows of ``gputile top``. They contain no usage if the cluster is read from files."""

    def __init__(self, options: TopOptions) -> None:
        from gputile.tools.web.top_rows import UsageOfNodes

        self._options = options
        self._namespace = "" if options.all_namespaces else options.namespace
        self._usage: UsageOfNodes | None = (
            None if options.cluster else UsageOfNodes(options.installed_in)
        )

    def answer(self, state: "ClusterObjects", *, twice: bool) -> "TopAnswer":
        """Return all rows. With ``twice``, read usage twice: GPU time needs two readings."""
        import msgspec

        from gputile.tools.web.state import page_state
        from gputile.tools.web.top_rows import top_answer

        page = page_state(
            state.configuration, state.nodes, state.pods, state.claims, time.time_ns()
        )
        tiles = list(page.page.nodes.values())
        found = top_answer(tiles, self._options.sort, self._read_usage(tiles, twice=twice))
        pods = [pod for pod in found.pods if self._namespace in ("", pod.namespace)]
        return msgspec.structs.replace(found, pods=pods)

    def _read_usage(self, tiles: "Sequence[NodeTile]", *, twice: bool) -> "Mapping[str, NodeUsage]":
        usage = self._usage
        if usage is None:
            return {}
        from gputile.cli.reads.live_cluster import connected, read_or_exit

        async def read() -> "Mapping[str, NodeUsage]":
            async with connected(self._options) as connection:
                return await usage.read(connection, tiles, twice=twice)

        return read_or_exit(read())

    def write(self, found: "TopAnswer", most: int | None) -> None:
        """Print the rows in at most ``most`` lines, or all rows if ``most`` is None."""
        from gputile.tools.web.top_rows import GPU_COLUMNS, NODE_COLUMNS, POD_COLUMNS, table_of

        match self._options.of:
            case TopOf.NODES:
                rows = table_of(NODE_COLUMNS, found.nodes)
            case TopOf.GPUS:
                rows = table_of(GPU_COLUMNS, found.gpus)
            case TopOf.PODS:
                rows = table_of(POD_COLUMNS, found.pods)
        notes = _OTHER_LINES + (lines_of_note(self._unknown_usage) if self._unknown_usage else 0)
        if left := write_table(rows, most - notes if most is not None else None):
            write(f"... and {left} more {self._options.of.value}\n")
        if len(rows) == 1:
            within = (
                f" in namespace {self._namespace}"
                if self._options.of is TopOf.PODS and self._namespace
                else ""
            )
            note(
                "there are no GPUs"
                if self._options.of is TopOf.GPUS
                else f"no {self._options.of.value} have GPUs{within}"
            )
        self.write_unknown_usage()

    @property
    def _unknown_usage(self) -> str:
        return self._usage.unknown if self._usage is not None else ""

    def write_unknown_usage(self) -> None:
        if self._unknown_usage:
            note(self._unknown_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions(LiveSource):
    port: Annotated[
        int,
        option(
            "PORT",
            "The port to listen on. Without --tls-dir, only on 127.0.0.1. 0 selects any free port.",
            min=0,
            max=65535,
        ),
    ] = PORT
    tls_dir: Annotated[
        Path | None,
        option(
            "DIR",
            "Serve HTTPS on every address with DIR/tls.crt and DIR/tls.key. Viewers must log in.",
        ),
    ] = None
    health_port: Annotated[
        int,
        option(
            "PORT",
            "The HTTP port of /healthz, /readyz and /metrics. It is used only with --tls-dir.",
            min=1,
            max=65535,
        ),
    ] = HEALTH_PORT


@takes(WebOptions)
def web(options: WebOptions) -> None:
    """Serve a live web page of the cluster's GPUs, and print the page's address.

    The command reads the cluster with your rights, as kubectl does, and changes nothing. The page
    is served on loopback only. Its address contains a secret that is new each time, and requests
    without the secret are refused. Ctrl-C ends the command.

    With --tls-dir, the page is served inside the cluster, and viewers log in with a token. They
    need the right to list nodes. They see the names of pods only in namespaces whose pods they may
    list.
    """
    import uvloop

    from gputile.cli.reads.live_cluster import UNREACHABLE, read_cluster
    from gputile.kube.config import load_access
    from gputile.kube.errors import ConfigError, KubeError
    from gputile.support.listening import PortError, UnusableTls
    from gputile.support.log_format import LogFormat, set_up_logging
    from gputile.tools.web.server import LoginSettings, WebSettings, serve

    live = read_cluster(options, read_given(options.config), options.installed_in)
    configuration = live.in_force()
    if (why := live.unlisted.get("ResourceClaims")) is not None:
        note(f"the cluster's ResourceClaims are unknown ({why}): the GPUs of claims are not shown")
    set_up_logging(LogFormat.TEXT, verbose=False)
    login = (
        LoginSettings(options.tls_dir, options.health_port) if options.tls_dir is not None else None
    )
    settings = WebSettings(
        options.port, _ready if login is None else _serving, _complete, options.installed_in, login
    )
    try:
        access = load_access(options.kubeconfig, options.context)
        uvloop.run(serve(access, configuration, live.nodes, live.pods, settings, live.claims))
    except (ConfigError, PortError, UnusableTls) as error:
        fail(str(error))
    except KubeError as error:
        fail(str(error), UNREACHABLE)


def _ready(address: str) -> None:
    write(f"{address}\n")
    note("open this address in a browser; Ctrl-C stops the server")


def _serving(address: str) -> None:
    note(f"serving at {address}; viewers log in with a token of the cluster")


async def _complete(connection: "Connection", snapshot: "ClusterSnapshot") -> "ClusterSnapshot":
    from gputile.cli.reads.live_cluster import read_budgets, read_groups, read_unsafe_namespaces

    groups, _ = await read_groups(connection)
    return replace(
        snapshot,
        groups=groups,
        unsafe=await read_unsafe_namespaces(connection),
        budgets=await read_budgets(connection),
    )
