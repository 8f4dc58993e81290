"""Prints what would help a pod that has no place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputile.cli.output.streams import write
from gputile.cli.output.terminal import write_text

if TYPE_CHECKING:
    from gputile.tools.simulator.remedies import Remedy


def write_remedies(changes: "Sequence[Remedy]") -> None:
    """Print the changes each of which would be enough; nothing where there are none."""
    if changes:
        write("It would fit if\n")
    for remedy in changes:
        where = f" (then on {', '.join(remedy.nodes)})" if remedy.nodes else ""
        write_text(f"{remedy.change}{where}", bullet="- ")
