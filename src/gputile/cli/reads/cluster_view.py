"""Reads the objects of a live cluster or of files for a command, repeatedly with ``--watch``."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gputile.cli.configuration import assumed, in_force, read_given
from gputile.cli.terminal import (
    BAD_INPUT,
    SAY_AFTER_PIPED_S,
    Progress,
    fail,
    note,
    note_line,
    redraws,
    write,
)

if TYPE_CHECKING:
    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.core import Node, Pod
    from gputile.api.resource_claims import ResourceClaim
    from gputile.cli.configuration import ClusterSource, GivenConfiguration

POLL_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Show the output again whenever it changes, until Ctrl-C."),
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The nodes, pods and ResourceClaims of a cluster, and its configuration."""

    nodes: "list[Node]"
    pods: "list[Pod]"
    configuration: "Configuration"
    namespace: str
    claims: "Sequence[ResourceClaim]" = ()

    def reread(self, source: "ClusterSource") -> "ClusterObjects":
        """Read the cluster again, but reuse the configuration. Exit if the cluster is unreadable.

        Raises:
            Unreadable: for files, or inside ``with rereading()``, raised instead of exiting.
        """
        from gputile.cli.configuration import GivenConfiguration

        return read_state(
            source, GivenConfiguration(self.configuration, self.configuration.unit_mib)
        )


def read_state(
    source: "ClusterSource", given: "GivenConfiguration | None" = None
) -> ClusterObjects:
    """Read the cluster that the options select. Exit if the cluster cannot be read.

    ``given`` is the configuration of an earlier read. Only the first read prints notes.
    """
    from gputile.core.ledger.node_info import unit_in_force

    is_reread = given is not None
    given = given or read_given(source.config)
    if not source.cluster:
        from gputile.cli.reads.live_cluster import read_cluster

        live = read_cluster(source, given, source.installed_in)
        if not is_reread:
            for each in live.unread:
                note(each)
            if (why := live.unlisted.get("ResourceClaims")) is not None:
                note(
                    f"the cluster's ResourceClaims are unknown ({why}): the GPUs of claims are "
                    f"not counted"
                )
        found = ClusterObjects(
            live.nodes, live.pods, live.in_force(), live.namespace, live.claims or ()
        )
        return _adopted(found, print_notes=not is_reread)
    if not is_reread:
        source.not_used()
    from gputile.tools.simulator.manifests import ManifestError, merged_notes
    from gputile.tools.simulator.scenario import load_scenario

    try:
        with Progress(f"reading {', '.join(source.cluster)}", piped=SAY_AFTER_PIPED_S):
            scenario = load_scenario(
                source.cluster, configured_mib=given.unit_mib if given is not None else None
            )
    except ManifestError as error:
        if is_reread:  # another process may be writing the file
            from gputile.cli.reads.live_cluster import Unreadable

            raise Unreadable(f"cannot read the cluster: {error}") from error
        fail(str(error), BAD_INPUT)
    for text in merged_notes(scenario.notes):
        note(text)
    configuration = in_force(given, scenario.unit_mib, unit_in_force(scenario.nodes))
    if given is None:
        configuration = assumed(configuration, "no --config")
    pods = [*scenario.bound, *scenario.pending]
    found = ClusterObjects(
        scenario.nodes, pods, configuration, "default", [*scenario.claims.claims.values()]
    )
    return _adopted(found, print_notes=not is_reread)


def _adopted(state: ClusterObjects, *, print_notes: bool) -> ClusterObjects:
    """Add the GPUs of nodes that gputile does not serve. Print notes if ``print_notes`` is set."""
    from gputile.tools.simulator.foreign_cluster import adopted_cluster

    found = adopted_cluster(state.nodes, state.pods, state.configuration.unit_mib)
    for each in found.notes if print_notes else ():
        note(str(each))
    return replace(state, nodes=found.nodes, pods=found.pods)


def watched(first: T, read: Callable[[], T], show: Callable[[T], None], *, redraw: bool) -> None:
    """Show ``first``, then each new result of ``read``, until an interrupt ends the process.

    If ``redraw`` is set and stdout is a terminal, the terminal is cleared before each result. While
    the cluster cannot be read, a note below the result states the reason.
    """
    found, why, clear = first, "", redraw and redraws()
    is_new = True
    while True:
        if clear:
            write(_CLEAR)
        if clear or is_new:
            show(found)
        if why:
            (note_line if clear else note)(why)
        before = found, why
        while (found, why) == before:
            time.sleep(POLL_EVERY_S)
            found, why = refreshed(read, found)
        is_new = found != before[0]
        if before[1] and not why and not clear:
            note("the cluster can be read again")


def refreshed(read: Callable[[], T], known: T) -> tuple[T, str]:
    """Return the result of ``read`` and "", or ``known`` and the reason why reading failed."""
    from gputile.cli.reads.live_cluster import Unreadable, rereading

    try:
        with rereading():
            return read(), ""
    except Unreadable as error:
        return known, str(error)
