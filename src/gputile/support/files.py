"""Reads files with a size limit and without blocking on pipes. Replaces files atomically."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from gputile.api.quantity import MIB


class UnusableFileError(OSError):
    """The path is not a regular file, or the file is too large."""


def read_bounded(path: str | Path, most: int) -> bytes:
    """Return the content of a file, pipe or device with at most ``most`` bytes.

    ``most`` must be a multiple of 1 MiB. A pipe, such as a shell's ``<(...)``, is read to its end.
    A pipe without a writer is an error.

    Raises:
        OSError: the file does not exist, cannot be read, or is too large. ``strerror`` is the
            reason.
        ValueError: ``path`` is not a valid file name.
    """
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    ) as file:
        os.set_blocking(file.fileno(), True)
        found = os.fstat(file.fileno())
        content = b"" if found.st_size > most else _read(file, most + 1)
    if found.st_size > most or len(content) > most:
        raise UnusableFileError(errno.EFBIG, f"it is larger than {most // MIB} MiB", str(path))
    if not content and stat.S_ISFIFO(found.st_mode):
        raise UnusableFileError(errno.EAGAIN, "it is a pipe without a writer", str(path))
    return content


def _read(file: BinaryIO, most: int) -> bytes:
    """Read up to ``most`` bytes in pieces, because a single read would allocate ``most`` bytes."""
    pieces, left = [], most
    while left > 0 and (piece := file.read(min(left, MIB))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def read_whole(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises:
        UnusableFileError: the path is not a regular file, or the file is too large.
        OSError: the file does not exist, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFileError(f"{path} is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = b"" if found.st_size > most else _read(file, most + 1)
        if found.st_size > most or len(content) > most:
            raise UnusableFileError(f"{path} has more than {most} bytes")
        return content
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically, and set its ``mode`` regardless of the umask.

    Raises:
        OSError: the file cannot be written. An existing file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # The file is private until it has its final mode.
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    temporary.chmod(mode)
    temporary.replace(path)
