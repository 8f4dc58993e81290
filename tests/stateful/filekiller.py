"""Kills whoever writes to files, before one of its writes, as SIGKILL does.

A write is what changes a directory or a file: to make, open for writing, rename, remove, or give another mode. A file
that was written beside its place and not renamed yet has half of its content then.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHANGES = frozenset(
    {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.symlink", "os.truncate", "shutil.rmtree"}
)
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killed(BaseException):
    """The process is killed; nothing of it handles that."""


class FileKiller:
    """Counts writes below ``directories``, and calls ``killed`` when it raises ``Killed``.

    ``dead``: the process has been killed, and writes nothing more until ``revive``.
    """

    def __init__(self, directories: Iterable[Path], killed: Callable[[], None]) -> None:
        self.dead = False
        self._below = tuple(f"{each}/" for each in directories)
        self._killed = killed
        self._left: deque[int] = deque()

    def arm(self, after: Iterable[int]) -> None:
        """Kill after so many writes; whoever comes then after the next number of them, and so on."""
        self._left = deque(after)
        _ACTIVE.add(self)

    def disarm(self) -> None:
        """Kill nobody any more."""
        self._left.clear()
        _ACTIVE.discard(self)

    def revive(self) -> None:
        """Another process begins."""
        self.dead = False
        if not self._left:
            _ACTIVE.discard(self)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Let somebody else write, who is not killed."""
        watched = self in _ACTIVE
        _ACTIVE.discard(self)
        yield
        if watched:
            _ACTIVE.add(self)

    def saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at what is about to happen.

        Raises:
            Killed: it does not.
        """
        if not self._is_mine(event, arguments):
            return
        if not self.dead:
            if not self._left:
                return
            self._left[0] -= 1
            if self._left[0] >= 0:
                return
            self._left.popleft()
            self.dead = True
            if event == "os.chmod":
                with self.unwatched():
                    _halve(Path(os.fsdecode(arguments[0])))
            self._killed()
        raise Killed(f"before {event} of {arguments[0]}")

    def _is_mine(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            if not flags & _FOR_WRITING:
                return False
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return False
        if isinstance(path, int):
            return False
        name = os.fsdecode(path)
        return name.startswith(self._below) or (event == "os.remove" and not name.startswith("/"))


def _halve(path: Path) -> None:
    if path.is_file() and path.name.startswith("."):
        os.truncate(path, path.stat().st_size // 2)


_ACTIVE: set[FileKiller] = set()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for each in tuple(_ACTIVE):
        each.saw(event, arguments)


sys.addaudithook(_hook)
