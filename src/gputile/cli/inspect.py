"""``gputile inspect`` and ``kubectl inspect cgpu``: who holds what."""

import fnmatch
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli import candidates
from gputile.cli.cluster_objects import ClusterFiles, Source, read_state
from gputile.cli.configuration import INSTALLED_IN, InstalledIn
from gputile.cli.options import REQUEST_TIMEOUT, Config, Context, Kubeconfig, Plain, Reach, RequestTimeout
from gputile.cli.output import fail, write, write_json, write_yaml
from gputile.cli.watching import Watch, watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputile.api.core import Node, Pod
    from gputile.cli.cluster_objects import ClusterObjects
    from gputile.tools.views.node_summaries import NodeSummary


class InspectFormat(StrEnum):
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
    selector: Annotated[
        str,
        typer.Option("--selector", "-l", metavar="SELECTOR", help="Only nodes with these labels: a=b,c in (d,e),!f."),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAMESPACE",
            autocompletion=candidates.namespaces,
            help="The pods' namespace; others are not listed, amounts count all.",
        ),
    ] = "",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List pods of all namespaces, as without -n.")
    ] = False,
    watch: Watch = False,
    cluster: ClusterFiles = None,
    output: Annotated[
        InspectFormat, typer.Option("--output", "-o", help="What to print; bars: each GPU drawn with what is on it.")
    ] = InspectFormat.TABLE,
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
    from gputile.cli.answers import InspectAnswer
    from gputile.cli.drawing import bars, draw
    from gputile.tools.simulator.names import broken_label_name
    from gputile.tools.views import inspect as tables

    if namespace and (why := broken_label_name(namespace)):
        fail(f"--namespace: {why}")
    view = _View(names or (), selector, "" if all_namespaces else namespace)
    source = Source(cluster or (), config, Reach(kubeconfig, context, request_timeout), installed_in)
    state = read_state(source)

    def show(found: _Shown) -> None:
        nodes, unit = found.nodes, found.unit_mib
        if output is InspectFormat.JSON:
            write_json(InspectAnswer(unit, nodes))
        elif output is InspectFormat.YAML:
            write_yaml(InspectAnswer(unit, nodes))
        elif output is InspectFormat.BARS:
            from gputile.tools.views.gpu_bars import groups_of

            drawn = bars(nodes, unit, found.pods)
            draw(drawn, unit, groups_of(drawn), plain=plain)
        elif details:
            write(tables.details(nodes, unit))
        else:
            write(tables.summary(nodes, unit))

    if watch:
        data = output in (InspectFormat.JSON, InspectFormat.YAML)
        watched(view.of(state), lambda: view.of(state.again(source)), show, redraw=not data)
    else:
        show(view.of(state))


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is shown: nodes, the memory unit to count in, MiB, and all pods of the cluster."""

    nodes: "list[NodeSummary]"
    unit_mib: int
    pods: "list[Pod]" = field(compare=False)


@dataclass(frozen=True, slots=True)
class _View:
    """Which nodes are shown, and of which namespace the pods on them; "" for all of them."""

    names: "Sequence[str]"
    selector: str
    namespace: str

    def of(self, state: "ClusterObjects") -> _Shown:
        """Return what is shown of a cluster; leave the program where there is no such node."""
        from gputile.core.ledger.events import NodesReplaced, PodsReplaced, TimePassed
        from gputile.core.ledger.ledger import Ledger
        from gputile.tools.views.inspect import unit_of
        from gputile.tools.views.node_summaries import node_summaries, of_namespace

        nodes = _selected(state.nodes, self.selector) if self.selector else state.nodes
        ledger = Ledger(state.configuration)
        ledger.apply(TimePassed(time.time_ns()))
        ledger.apply(NodesReplaced(state.nodes))
        ledger.apply(PodsReplaced([pod for pod in state.pods if pod.spec.node_name or not pod.finished]))
        selected = {node.metadata.name for node in nodes}
        shown = [node for node in node_summaries(ledger) if node.name in selected]
        for name in self.names:
            if not any(fnmatch.fnmatchcase(node.name, name) for node in shown):
                fail(f"no node with GPUs is called {name}")
        if self.names:
            shown = [node for node in shown if any(fnmatch.fnmatchcase(node.name, name) for name in self.names)]
        unit = unit_of(shown, state.configuration.unit_mib)
        return _Shown([of_namespace(node, self.namespace) for node in shown], unit, state.pods)


def _selected(nodes: "Sequence[Node]", selector: str) -> "list[Node]":
    from gputile.tools.simulator.label_selector import SelectorError, matches, parse_selector

    try:
        wanted = parse_selector(selector)
    except SelectorError as error:
        fail(f"--selector: {error}")
    return [node for node in nodes if matches(wanted, node.metadata.labels)]
