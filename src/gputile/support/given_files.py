"""Files that people name: read up to a bound, whatever stands there.

A pipe is a file too, as a shell makes one of ``<(...)``. Only one that nobody opens for writing is an error.
"""

import errno
import os
import select
import stat
from pathlib import Path
from typing import Final

from gputile.support.files import UnusableFileError

MIB: Final = 1 << 20
OPENED_WITHIN_S: Final = 10.0
_PART: Final = 1 << 20


def read_given(path: str | Path, most: int, opened_within_s: float = OPENED_WITHIN_S) -> bytes:
    """Return what is in a file, a pipe or a device; it may have ``most`` bytes, which are whole MiB.

    Raises:
        OSError: it is not there, cannot be read, is larger, or is a pipe that nobody opens for writing in
            ``opened_within_s`` seconds; ``strerror`` says it in words.
        ValueError: ``path`` cannot be the name of a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        content = b"" if found.st_size > most else _read(descriptor, path, most + 1, opened_within_s)
        if found.st_size > most or len(content) > most:
            raise UnusableFileError(errno.EFBIG, f"it is larger than {most // MIB} MiB", str(path))
        return content
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: str | Path, most: int, opened_within_s: float) -> bytes:
    events = select.poll()
    events.register(descriptor, select.POLLIN)
    is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    writer = not is_pipe or bool(events.poll(opened_within_s * 1000))  # a word of one that has left counts too
    content = bytearray()
    while len(content) < most:
        try:
            part = os.read(descriptor, min(_PART, most - len(content)))
        except BlockingIOError:
            writer = True  # it has the pipe open, and has written nothing yet
            events.poll()
            continue
        if not part:
            break
        content += part
    if not writer and not content:
        why = f"it is a pipe that nobody has opened for writing within {opened_within_s:g} s"
        raise UnusableFileError(errno.EAGAIN, why, str(path))
    return bytes(content)
