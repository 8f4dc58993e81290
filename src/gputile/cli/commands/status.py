"""Runs ``gputile status``, which shows whether the installation is completely deployed."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.configuration import INSTALLED_IN
from gputile.cli.options import ApiOptions, Printed, duration_s, namespace, option, takes
from gputile.cli.reads.cluster_view import Watch, refreshed, watched
from gputile.cli.terminal import (
    NOT_PLACED,
    SAY_AFTER_PIPED_S,
    Output,
    Progress,
    columns,
    fail,
    note,
    write,
    write_data,
)

if TYPE_CHECKING:
    from gputile.tools.views.status import Installation

NOT_DEPLOYED = NOT_PLACED
POLL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions(ApiOptions):
    installed_in: Annotated[
        str, option("NAMESPACE", "The namespace in which gputile is installed.", callback=namespace)
    ] = INSTALLED_IN
    release: Annotated[
        str, option("NAME", "The Helm release. By default, every release in the namespace.")
    ] = ""
    output: Printed = Output.TABLE
    wait: Annotated[
        str,
        option("TIME", "How long to wait until it is deployed, such as 5m.", "--wait", "--timeout"),
    ] = "0"
    watch: Watch = False


@takes(StatusOptions)
def status(options: StatusOptions) -> None:
    """Show whether gputile is Deployed, Deploying or Failed, and the mode and memory unit of each
    GPU node.

    Exit code: 0 if every component is ready or runs outside of pods, 3 if a component is not ready
    or an upgrade has failed or has not ended, 1 if the API server does not answer.
    """
    from gputile.cli.reads.installation import read_installation
    from gputile.tools.views.status import RolloutPhase, table

    def read() -> "Installation":
        return read_installation(options, options.installed_in, options.release)

    def show(found: "Installation") -> None:
        if options.output.is_data:
            write_data(found, options.output)
        else:
            write(table(found, columns()))

    wait_s = duration_s(options.wait, "--wait")
    if options.watch and wait_s:
        fail("--wait and --watch cannot be used together")
    if options.watch:
        watched(read(), read, show, redraw=not options.output.is_data)

    def is_deployed(found: "Installation") -> bool:
        runs_outside = (
            found.phase is RolloutPhase.OUTSIDE_OF_PODS
            and not options.release
            and not found.problems
        )
        return runs_outside or found.phase is RolloutPhase.DEPLOYED

    deadline = time.monotonic() + wait_s
    with Progress("waiting for gputile to be deployed", piped=SAY_AFTER_PIPED_S):
        installation, why = read(), ""
        while (why or not is_deployed(installation)) and time.monotonic() < deadline:
            time.sleep(POLL_EVERY_S)
            installation, why = refreshed(read, installation)
    show(installation)
    if why:
        note(why)
    if not is_deployed(installation):
        raise typer.Exit(NOT_DEPLOYED)
