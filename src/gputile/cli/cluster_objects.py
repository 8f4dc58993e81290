"""The cluster that a command looks at: the live one, or one that files describe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.configuration import assumed, in_force, read_given
from gputile.cli.output import BAD_INPUT, fail, note
from gputile.cli.progress import SAY_AFTER_PIPED_S, Progress

if TYPE_CHECKING:
    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.core import Node, Pod
    from gputile.cli.configuration import GivenConfiguration
    from gputile.cli.options import Reach

ClusterFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="The cluster in a file; a kind: Cluster, or what kubectl get nodes,pods -A -o yaml prints.",
    ),
]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a cluster is read, as the options say: ``files``, else the live one."""

    files: Sequence[str]
    config: Path | None
    reach: "Reach"
    installed_in: str


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Nodes, pods, and the configuration that goes for them."""

    nodes: "list[Node]"
    pods: "list[Pod]"
    configuration: "Configuration"
    namespace: str

    def again(self, source: Source) -> "ClusterObjects":
        """Return what the cluster has now, by the configuration that is known; leave where it cannot be read."""
        from gputile.cli.configuration import GivenConfiguration

        return read_state(source, GivenConfiguration(self.configuration, self.configuration.unit_mib))


def read_state(source: Source, given: "GivenConfiguration | None" = None) -> ClusterObjects:
    """Return the state of a cluster; leave the program where it cannot be read.

    ``given`` is the configuration where it is known already.
    """
    from gputile.core.ledger.node_info import unit_in_force

    looked_before = given is not None
    given = given or read_given(source.config)
    if not source.files:
        from gputile.cli.live import read_cluster

        live = read_cluster(source.reach, given, source.installed_in)
        if not looked_before:
            for each in live.unread:
                note(each)
        configuration = in_force(live.given, None, unit_in_force(live.nodes))
        if live.given is None:
            configuration = assumed(configuration, live.unknown)
        return ClusterObjects(live.nodes, live.pods, configuration, live.namespace)
    if not looked_before:
        source.reach.not_used()
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.notes import told_together
    from gputile.tools.simulator.scenario import load_scenario

    try:
        with Progress(f"reading {', '.join(source.files)}", piped=SAY_AFTER_PIPED_S):
            scenario = load_scenario(source.files, configured_mib=given.unit_mib if given is not None else None)
    except ManifestError as error:
        fail(str(error), BAD_INPUT)
    for text in told_together(scenario.notes):
        note(text)
    configuration = in_force(given, scenario.unit_mib, unit_in_force(scenario.nodes))
    if given is None:
        configuration = assumed(configuration, "no --config")
    return ClusterObjects(scenario.nodes, [*scenario.bound, *scenario.pending], configuration, "default")
