"""Runs ``gputile version``."""

from gputile.cli.options.common import Printed
from gputile.cli.output.streams import Output, write, write_json
from gputile.version import VERSION


def version(output: Printed = Output.TABLE) -> None:
    """Print the version of gputile."""
    if output is Output.JSON:
        from gputile.cli.output.answers import VersionAnswer

        write_json(VersionAnswer(VERSION))
    else:
        write(f"gputile {VERSION}\n")
