"""The ``gputile`` command, and ``kubectl inspect cgpu``."""

from importlib.metadata import version
from typing import Annotated

import typer

from gputile.cli.agent import agent
from gputile.cli.controller import controller
from gputile.cli.explain import explain
from gputile.cli.extender import extender
from gputile.cli.inspect import inspect
from gputile.cli.nodepool import nodepool
from gputile.cli.replay import replay
from gputile.cli.selftest import selftest
from gputile.cli.simulate import simulate
from gputile.cli.status import status
from gputile.cli.webhook import webhook

_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="gputile",
    help="Share the GPUs of a Kubernetes cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gputile {version('gputile')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Share the GPUs of a Kubernetes cluster."""


app.command("simulate")(simulate)
app.command("inspect")(inspect)
app.command("explain")(explain)
app.command("extender")(extender)
app.command("controller")(controller)
app.command("agent")(agent)
app.command("replay")(replay)
app.add_typer(selftest, name="selftest")
app.command("status")(status)
app.command("nodepool")(nodepool)
app.command("webhook")(webhook)


def main() -> None:
    """Run the ``gputile`` command."""
    app()


def kubectl_inspect_cgpu() -> None:
    """Run ``kubectl inspect cgpu``, which kubectl finds by the name of this program, ``kubectl-inspect-cgpu``."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=_HELP)
    alone.command()(inspect)
    alone()
