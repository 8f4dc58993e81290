"""Writes a simulation as a page: the tiles of ``gputile web`` in one file that loads nothing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputile.api.core import Pod
    from gputile.cli.output.simulation import SimulationResult


def simulate_html(result: "SimulationResult") -> str:
    """Return the page of a simulation: its nodes, and for each pod without a place why it has none."""
    import msgspec

    from gputile.tools.web.page.assets import html_file
    from gputile.tools.web.page.records import FeedStatus, PageAnswer
    from gputile.tools.web.page.tiles import instances_of_pod, node_tile, pending_pod

    simulation, scenario = result.simulation, result.scenario
    ledger, configuration = simulation.ledger, simulation.configuration
    objects = {node.metadata.name: node for node in scenario.nodes}
    there = [*scenario.bound, *scenario.waiting, *(outcome.pod for outcome in result.outcomes)]
    pods = {pod.metadata.uid: pod for pod in there}
    on_instances: dict[str, list[Pod]] = {}
    for pod in scenario.bound:
        if not pod.finished and instances_of_pod(pod):
            on_instances.setdefault(pod.spec.node_name, []).append(pod)
    tiles = [
        node_tile(ledger, row, objects.get(info.name), pods, on_instances.get(info.name, ()))
        for row, info in ledger.nodes()
    ]
    refused = [(pending_pod(each.pod, configuration), each.reason) for each in result.outcomes if each.node is None]
    waiting = [pending_pod(pod, configuration) for pod in scenario.waiting]
    pending = [msgspec.structs.replace(pod, waits=reason) for pod, reason in refused if pod is not None]
    return html_file(
        PageAnswer(
            epoch="",
            revision=0,
            cluster="simulation",
            unit_mib=configuration.unit_mib,
            status=FeedStatus(),
            nodes=[tile for tile in tiles if tile is not None],
            pending=[*pending, *(pod for pod in waiting if pod is not None)],
        )
    )
