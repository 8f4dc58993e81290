"""Runs services and watched views until they are interrupted, and cleans up on signals."""

import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer

from gputile.cli.terminal import fail, note, note_line, redraws, write

LOOK_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes, until interrupted.")]
T = TypeVar("T")


def watched(first: T, look: Callable[[], T], show: Callable[[T], None], *, redraw: bool) -> None:
    """Show ``first``, then each new result of ``look``. Never returns: an interrupt ends the process.

    If ``redraw`` is set, a terminal shows only the latest result. Otherwise results follow one another. While the
    cluster cannot be read, a note below the result gives the reason.
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
            time.sleep(LOOK_EVERY_S)
            found, why = refreshed(look, found)
        is_new = found != before[0]
        if before[1] and not why and not clear:
            note("the cluster can be read again")


def refreshed(look: Callable[[], T], known: T) -> tuple[T, str]:
    """Return the current state and ""; if the cluster cannot be read, return ``known`` and the reason."""
    from gputile.cli.reads.live_cluster import Unreadable, looking_again

    try:
        with looking_again():
            return look(), ""
    except Unreadable as error:
        return known, str(error)


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until it ends; exit with an error if it cannot listen on a port."""
    import uvloop

    from gputile.support.listening import PortError

    try:
        uvloop.run(service)
    except PortError as error:
        fail(str(error))


@contextmanager
def unwinding_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """On a termination signal, call ``stop``, which ends child processes, and exit through all open contexts.

    Further signals are ignored during the clean-up. A signal that the parent process ignores stays ignored.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        stop()
        sys.exit(128 + number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {each: found for each in signals if (found := signal.getsignal(each)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
