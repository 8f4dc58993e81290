"""Draws the GPUs of a cluster on the terminal, in pieces by namespace or by workload."""

from typing import TYPE_CHECKING

from gputile.cli.output.terminal import paper, write_drawing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gputile.api.core import Pod
    from gputile.tools.views.gpu_bars import BarGroups, NodeBars
    from gputile.tools.views.node_summaries import NodeSummary


def bars(nodes: "Sequence[NodeSummary]", unit_mib: int, pods: "Iterable[Pod]") -> "list[NodeBars]":
    """Return the nodes with a bar for each GPU; ``pods`` say which workload each of the cluster's pods belongs to."""
    from gputile.tools.simulator.outcomes import workload_name, workload_of
    from gputile.tools.views.gpu_bars import OTHER_PODS, node_bars

    if len({pod.namespace for node in nodes for pod in node.pods}) > 1:
        return node_bars(nodes, unit_mib, lambda pod: pod.namespace)
    names = {pod.key: workload_name(workload_of(pod)) for pod in pods}
    return node_bars(nodes, unit_mib, lambda pod: names.get(f"{pod.namespace}/{pod.name}", OTHER_PODS))


def draw(shown: "Sequence[NodeBars]", unit_mib: int, groups: "BarGroups", *, plain: bool) -> None:
    """Print the drawing; ``plain`` asks for ASCII, ``groups`` have the letters and colours of the pieces."""
    from gputile.tools.views.gpu_bars import draw as drawn

    on = paper(plain=plain)
    write_drawing(drawn(shown, unit_mib, groups, on), on)
