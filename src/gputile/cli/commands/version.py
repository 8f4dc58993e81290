"""Runs ``gputile version``."""

from gputile.cli.options.common import Printed
from gputile.cli.output.streams import Output, write, write_data
from gputile.version import VERSION


def version(output: Printed = Output.TABLE) -> None:
    """Print the version of gputile."""
    if output.is_data:
        from gputile.cli.output.answers import VersionAnswer

        write_data(VersionAnswer(VERSION), output)
    else:
        write(f"gputile {VERSION}\n")
