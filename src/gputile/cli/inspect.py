"""``gputile inspect`` and ``kubectl inspect cgpu``: who holds what."""

import fnmatch
import time
from enum import StrEnum
from typing import Annotated

import typer

from gputile.cli import candidates
from gputile.cli.configuration import INSTALLED_IN, InstalledIn, assumed, in_force, read_given
from gputile.cli.options import REQUEST_TIMEOUT, Config, Context, Kubeconfig, Plain, Reach, RequestTimeout
from gputile.cli.output import fail, write, write_json, write_yaml


class Format(StrEnum):
    """What to print."""

    TABLE = "table"
    BARS = "bars"
    JSON = "json"
    YAML = "yaml"


def inspect(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Only these nodes; * matches.", autocompletion=candidates.nodes),
    ] = None,
    details: Annotated[bool, typer.Option("--details", "-d", help="List the pods of each node.")] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="What to print; bars: each GPU drawn with what is on it.")
    ] = Format.TABLE,
    plain: Plain = False,
    config: Config = None,
    installed_in: InstalledIn = INSTALLED_IN,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    request_timeout: RequestTimeout = REQUEST_TIMEOUT,
) -> None:
    """Show for each GPU node how much of each GPU is allocated, in the memory unit that is in force.

    A column PENDING(Allocated) appears when a pod is on a node and nobody knows on which GPU yet.
    """
    from gputile.cli.drawing import bars, draw
    from gputile.cli.live import read_cluster
    from gputile.core.ledger.events import NodesReplaced, PodsReplaced, TimePassed
    from gputile.core.ledger.ledger import Ledger
    from gputile.tools.simulator.scenario import unit_in_force
    from gputile.tools.views import inspect as tables
    from gputile.tools.views.gpu_bars import groups_of
    from gputile.tools.views.node_summaries import node_summaries

    live = read_cluster(Reach(kubeconfig, context, request_timeout), read_given(config), installed_in)
    configuration = in_force(live.given, None, unit_in_force(live.nodes))
    if live.given is None:
        configuration = assumed(configuration, live.unknown)
    ledger = Ledger(configuration)
    ledger.apply(TimePassed(time.time_ns()))
    ledger.apply(NodesReplaced(live.nodes))
    ledger.apply(PodsReplaced(live.pods))
    shown = node_summaries(ledger)
    if names:
        unmatched = [name for name in names if not any(fnmatch.fnmatchcase(node.name, name) for node in shown)]
        if unmatched:
            fail(f"no node with GPUs is called {unmatched[0]}")
        shown = [node for node in shown if any(fnmatch.fnmatchcase(node.name, name) for name in names)]
    unit = tables.unit_of(shown, configuration.unit_mib)
    if output is Format.JSON:
        write_json({"unitMib": unit, "nodes": shown})
    elif output is Format.YAML:
        write_yaml({"unitMib": unit, "nodes": shown})
    elif output is Format.BARS:
        drawn = bars(shown, unit, live.pods)
        draw(drawn, unit, groups_of(drawn), plain=plain)
    elif details:
        write(tables.details(shown, unit))
    else:
        write(tables.summary(shown, unit))
