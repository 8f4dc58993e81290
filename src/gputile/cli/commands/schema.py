"""Runs ``gputile schema``, which prints JSON Schemas of files and outputs, and ``gputile version``."""

import pkgutil
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from gputile.api.wording import unsupported
from gputile.cli.options import Printed
from gputile.cli.terminal import Output, fail, write, write_data
from gputile.version import VERSION

SCHEMAS: Final[Mapping[str, str]] = {
    "cluster": "A file: kind: Cluster, for --cluster.",
    "configuration": "A file: kind: Configuration, for --config, and in the chart.",
    "nodepool": "A file: kind: NodePool, for nodepool -f.",
    "podkinds": "A file: kind: PodKinds, for --kinds.",
    "explain": "What explain -o json prints.",
    "inspect": "What inspect -o json prints.",
    "selftest-isolation": "What selftest isolation -o json prints.",
    "simulate": "What simulate -o json prints.",
    "status": "What status -o json prints.",
    "top": "What top -o json prints.",
    "version": "What version -o json prints.",
}
"""What the schemas describe, by their names."""


def _names() -> list[str]:
    return list(SCHEMAS)


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The schema; default: list all.", autocompletion=_names)
    ] = None,
) -> None:
    """Print the JSON Schema of a file that people write, or of what -o json of a command prints.

    -o yaml has the same form.
    """
    if name is None:
        width = max(map(len, SCHEMAS))
        write("".join(f"{each:{width}}  {what}\n" for each, what in SCHEMAS.items()))
        return
    if name not in SCHEMAS:
        fail(f"schema: {unsupported(name, SCHEMAS)}")
    write((pkgutil.get_data("gputile.cli", f"schemas/{name}.json") or b"").decode())


def version(output: Printed = Output.TABLE) -> None:
    """Print the version of gputile."""
    if output.is_data:
        from gputile.cli.answers import VersionAnswer

        write_data(VersionAnswer(VERSION), output)
    else:
        write(f"gputile {VERSION}\n")
