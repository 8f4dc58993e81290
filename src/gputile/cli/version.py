"""``gputile version``."""

from gputile.cli.output import write
from gputile.version import VERSION


def version() -> None:
    """Print the version of gputile."""
    write(f"gputile {VERSION}\n")
