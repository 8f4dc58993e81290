"""Runs ``gputile inspect`` and ``kubectl inspect cgpu``, which show the pods on each GPU."""

import fnmatch
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.configuration import ClusterFiles, ClusterSource
from gputile.cli.options import AllNamespaces, Plain, PodsNamespace, option, takes
from gputile.cli.reads.cluster_view import Watch, read_state, watched
from gputile.cli.terminal import fail, note, write, write_data

if TYPE_CHECKING:
    from gputile.api.core import Pod
    from gputile.cli.reads.cluster_view import ClusterObjects
    from gputile.tools.views.inspect import NodeSummary


class InspectFormat(StrEnum):
    TABLE = "table"
    BARS = "bars"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions(ClusterSource):
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...", help="Show only the nodes with these names. * is a wildcard."
        ),
    ] = None
    details: Annotated[
        bool, typer.Option("--details", "-d", help="List the pods of each node.")
    ] = False
    selector: Annotated[
        str,
        option(
            "SELECTOR",
            "Show only the nodes with these labels, such as a=b,c in (d,e),!f.",
            "--selector",
            "-l",
        ),
    ] = ""
    namespace: PodsNamespace = ""
    all_namespaces: AllNamespaces = False
    watch: Watch = False
    cluster: ClusterFiles = None
    output: Annotated[
        InspectFormat,
        typer.Option("--output", "-o", help="The output format. bars draws each GPU and its pods."),
    ] = InspectFormat.TABLE
    plain: Plain = False


@takes(InspectOptions)
def inspect(options: InspectOptions) -> None:
    """Show how much memory of each GPU is allocated, by node, in the cluster's memory unit.

    The column PENDING(Allocated) appears if the GPUs of a pod on a node are still unknown.
    """
    from gputile.api.wording import nearest
    from gputile.cli.answers import InspectAnswer
    from gputile.cli.terminal import bars, columns, draw
    from gputile.tools.simulator.what_if import selector_hint
    from gputile.tools.views import inspect as tables

    is_data = options.output in (InspectFormat.JSON, InspectFormat.YAML)

    def show(found: _Selection) -> None:
        nodes, unit = found.nodes, found.unit_mib
        if is_data:
            write_data(InspectAnswer(unit, nodes), options.output)
        elif options.output is InspectFormat.BARS:
            from gputile.tools.views.gpu_bars import groups_of

            drawn = bars(nodes, found.pods)
            draw(drawn, groups_of(drawn), plain=options.plain)
        elif options.details:
            write(tables.details(nodes, unit, columns()))
        else:
            write(tables.summary(nodes, unit, columns()))

        for name in found.missing:
            note(f"{_no_node_text(name)} any more")

    state = read_state(options)
    first = _select(state, options)
    if first.missing:
        others = [node.name for node in _select(state, replace(options, names=None)).nodes]
        fail(f"{_no_node_text(first.missing[0])}{nearest(first.missing[0], others)}")
    if options.selector and not first.nodes:
        hint = selector_hint(options.selector, state.nodes)
        note(f"no GPU node has the labels {options.selector[:80]!r}{hint}")
    if options.watch:
        watched(first, lambda: _select(state.reread(options), options), show, redraw=not is_data)
    else:
        show(first)


def _no_node_text(name: str) -> str:
    return f"no GPU node is named {name or repr(name)}"


@dataclass(frozen=True, slots=True)
class _Selection:
    """The nodes to show. ``missing`` contains the requested names that match no node."""

    nodes: "list[NodeSummary]"
    unit_mib: int
    missing: "list[str]"
    pods: "list[Pod]" = field(compare=False)


def _select(state: "ClusterObjects", options: InspectOptions) -> _Selection:
    from gputile.core.kube_predicates.node_fit import selects
    from gputile.tools.simulator.what_if import SelectorError, parse_selector
    from gputile.tools.views.inspect import node_summaries, of_namespace, unit_of

    try:
        wanted = parse_selector(options.selector) if options.selector else None
    except SelectorError as error:
        fail(f"--selector: {error}")
    nodes = [
        node for node in state.nodes if wanted is None or selects(wanted, node.metadata.labels)
    ]
    shown = node_summaries(nodes, state.pods, state.configuration, time.time_ns(), state.claims)
    names = options.names or ()
    missing = [
        name for name in names if not any(fnmatch.fnmatchcase(node.name, name) for node in shown)
    ]
    if names:
        shown = [
            node for node in shown if any(fnmatch.fnmatchcase(node.name, name) for name in names)
        ]
    unit = unit_of(shown, state.configuration.unit_mib)
    namespace = "" if options.all_namespaces else options.namespace
    return _Selection([of_namespace(node, namespace) for node in shown], unit, missing, state.pods)
