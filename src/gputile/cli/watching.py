"""``--watch``: what a command shows, again whenever it has changed, until an interrupt ends it."""

import sys
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from gputile.cli.output import write

LOOK_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again whenever it has changed; an interrupt ends it.")
]
T = TypeVar("T")


def watched(first: T, look: Callable[[], T], show: Callable[[T], None], *, redraw: bool) -> None:
    """Show ``first``, then what ``look`` returns as often as it differs. It does not return: an interrupt ends it.

    ``redraw`` has a terminal show the latest alone; what is no terminal gets one after the other.
    """
    found, clear = first, redraw and sys.stdout.isatty()
    while True:
        if clear:
            write(_CLEAR)
        show(found)
        shown = found
        while found == shown:
            time.sleep(LOOK_EVERY_S)
            found = look()
