"""Cleans up when a command ends early: stops the processes and removes the directories it made."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Ended(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def tidy(stop: Callable[[], None]) -> Iterator[None]:
    """Let a signal that ends programs call ``stop`` and unwind the block, then leave as a shell says it: SIGINT is 130.

    ``stop`` ends the processes that the block waits for. A second signal does not disturb the putting away. A signal
    that whoever started the process has ignored stays so.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        stop()
        raise _Ended(number)

    handled = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: before for number, before in handled.items() if before is not signal.SIG_IGN}
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    except _Ended as ended:
        raise typer.Exit(128 + ended.number) from None
    finally:
        for number, before in handled.items():
            signal.signal(number, before)


def kill_children() -> None:
    """Kill every process that this one has started, also one that a call was just starting."""
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)  # nobody else waits for it, so its number is still its own
