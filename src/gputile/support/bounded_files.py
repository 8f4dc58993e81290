"""Reads files that people name, up to a bound, whatever kind of file they are.

A pipe is a file, too: a shell makes one of ``<(...)``. Only a pipe that nobody writes to is an error.
"""

import errno
import os
import select
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.support.files import UnusableFileError

SILENT_S: Final = 10.0
_PART: Final = 1 << 20


def read_bounded(path: str | Path, most: int, silent_s: float = SILENT_S, *, patient: bool = False) -> bytes:
    """Return what is in a file, a pipe or a device; it may have ``most`` bytes, which are whole MiB.

    With ``patient`` it waits for a pipe as long as a process has it open for writing, however long nothing comes.

    Raises:
        OSError: it is not there, cannot be read, is larger, or nothing came from it for ``silent_s`` seconds;
            ``strerror`` says it in words.
        ValueError: ``path`` cannot be the name of a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        is_pipe = stat.S_ISFIFO(found.st_mode)
        if is_pipe and _is_own_output(found):
            raise UnusableFileError(errno.EDEADLK, "it is the pipe that this command itself writes to", str(path))
        reader = _Reader(descriptor, str(path), silent_s, is_pipe, patient and is_pipe)
        content = b"" if found.st_size > most else reader.read(most + 1)
        if found.st_size > most or len(content) > most:
            raise UnusableFileError(errno.EFBIG, f"it is larger than {most // MIB} MiB", str(path))
        return content
    finally:
        os.close(descriptor)


def _is_own_output(found: os.stat_result) -> bool:
    """Return whether this process has a file open to write to it: as long as it waits, the file has no end."""
    for descriptor in (1, 2):
        try:
            own = os.fstat(descriptor)
        except OSError:  # it is closed
            continue
        if (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino):
            return True
    return False


def is_file(path: Path) -> bool:
    """Return whether a regular file is there; no name is too long to ask."""
    try:
        return path.is_file()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Reader:
    descriptor: int
    path: str
    silent_s: float
    is_pipe: bool
    patient: bool

    def read(self, most: int) -> bytes:
        """Return the bytes up to the end, ``most`` at most."""
        content = bytearray()
        written = not self.is_pipe or self._comes()  # a pipe that nobody has opened ends at once, too
        while len(content) < most:
            try:
                part = os.read(self.descriptor, min(_PART, most - len(content)))
            except BlockingIOError:
                written = True
                if not self._comes() and not self.patient:
                    raise self._silent() from None
                continue
            if not part:
                break
            content += part
        if not written and not content:
            raise self._silent()
        return bytes(content)

    def _comes(self) -> bool:
        """Wait for bytes or the end; return whether one of them has come."""
        events = select.poll()
        events.register(self.descriptor, select.POLLIN)
        return bool(events.poll(self.silent_s * 1000))

    def _silent(self) -> UnusableFileError:
        what = "it is a pipe that nobody writes to" if self.is_pipe else "it is no file with an end"
        return UnusableFileError(errno.EAGAIN, f"{what}: nothing came for {self.silent_s:g} s", self.path)
