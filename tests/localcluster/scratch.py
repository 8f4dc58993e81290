"""The directory of a control plane or of a node, removed by the next run where this one was killed before it could."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

PREFIX = "gputile-controlplane-"
LOCK = "lock"


class Scratch:
    """A new temporary directory. A lock on a file in it, which ends with the process, tells that it is in use.

    ``prefix`` begins its name, and those of the abandoned ones to remove; ``undo`` takes back what was done outside of
    such a directory, which goes by its name.
    """

    def __init__(self, prefix: str = PREFIX, undo: Callable[[Path], None] = lambda _: None) -> None:
        self._undo = undo
        remove_abandoned(prefix, undo)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        unlocked = self.path / f"{LOCK}.new"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / LOCK)  # so that nobody ever finds it under its name without an owner

    def remove(self) -> None:
        """Remove the directory and all in it."""
        self._undo(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned(prefix: str = PREFIX, undo: Callable[[Path], None] = lambda _: None) -> None:
    """Remove the directories of runs that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open() as lock:
            if _unowned(lock):
                undo(path.parent)
                shutil.rmtree(path.parent, ignore_errors=True)


def _unowned(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
