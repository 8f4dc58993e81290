"""Shows on one line of a terminal what a long command does; elsewhere it prints a note or nothing.

A thread writes it, so that it shows too while the work itself is in one long step. It hides no cursor and owns no
terminal: an interrupt may end the process at any moment.
"""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from gputile.tools.views.terminal_text import inert

AFTER_S = 2.0
SAY_AFTER_PIPED_S = 8.0  # within the ten seconds after which silence is taken for a hang
EVERY_S = 0.2
T = TypeVar("T")


class Progress:
    """A context in which the line shows once ``after`` seconds have gone by; the end takes it away.

    ``total`` is how many steps there are, 0 where nobody knows. Where standard error is no terminal, a note
    says once what goes on, after ``piped`` seconds; None: nothing does.
    """

    def __init__(self, what: str, total: int = 0, *, after: float = AFTER_S, piped: float | None = None) -> None:
        self._what = inert(what)
        self._piped = piped
        self._total = total
        self._after = after
        self._done = 0
        self._ended = threading.Event()
        self._shown = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and (self._piped is not None or sys.stderr.isatty()):
            show = self._show if sys.stderr.isatty() else self._note
            self._thread = threading.Thread(target=show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._shown:
            _write("\r\x1b[K")

    def at(self, done: int) -> None:
        """Say how many steps are done."""
        self._done = done

    def _note(self) -> None:
        if not self._ended.wait(self._piped):
            _write(f"note: {self._what}\n")

    def _show(self) -> None:
        started = time.monotonic()
        if self._ended.wait(self._after):
            return
        self._shown = True
        while True:
            count = f" {self._done}" if self._done or self._total else ""
            count += f" of {self._total}" if self._total else ""
            text = f"{self._what}{count} ... {time.monotonic() - started:.0f} s"
            _write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
            if self._ended.wait(EVERY_S):
                return


def counted(steps: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield ``steps``, and show how many of them are done."""
    with Progress(what, total, piped=SAY_AFTER_PIPED_S) as progress:
        for number, step in enumerate(steps, 1):
            yield step
            progress.at(number)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody looks any more
        sys.stderr.write(text)
        sys.stderr.flush()
