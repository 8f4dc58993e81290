"""Writes files so that others can read them meanwhile, and reads whatever stands in their place."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from gputile.api.quantity import MIB


class UnusableFileError(OSError):
    """What stands in a file's place is no regular file, or longer than it may be; the text says which."""


def read_bounded(path: str | Path, most: int) -> bytes:
    """Return what is in a file, a pipe or a device that somebody named; it may have ``most`` bytes, whole MiB.

    A shell makes a pipe of ``<(...)``, which is read to its end. One that nobody has opened to write is not waited for.

    Raises:
        OSError: it is not there, cannot be read, or is larger; ``strerror`` says it in words.
        ValueError: ``path`` cannot be the name of a file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
        os.set_blocking(file.fileno(), True)
        found = os.fstat(file.fileno())
        content = b"" if found.st_size > most else _read(file, most + 1)
    if found.st_size > most or len(content) > most:
        raise UnusableFileError(errno.EFBIG, f"it is larger than {most // MIB} MiB", str(path))
    if not content and stat.S_ISFIFO(found.st_mode):
        raise UnusableFileError(errno.EAGAIN, "it is a pipe that nobody writes to", str(path))
    return content


def _read(file: BinaryIO, most: int) -> bytes:
    """Return at most ``most`` bytes, in pieces: a single read allocates ``most`` bytes, however small the file is."""
    pieces, left = [], most
    while left > 0 and (piece := file.read(min(left, MIB))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def read_whole(path: Path, most: int) -> bytes:
    """Return what is in a regular file of at most ``most`` bytes; a pipe or a device in its place is not waited for.

    Raises:
        UnusableFileError: it is something else, or longer.
        OSError: it is not there, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFileError(f"{path} is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = b"" if found.st_size > most else _read(file, most + 1)
        if found.st_size > most or len(content) > most:
            raise UnusableFileError(f"{path} has more than {most} bytes")
        return content
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before; it gets ``mode`` whatever umask.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb", opener=_own) as file:
        file.write(content)
    beside.chmod(mode)
    beside.replace(path)


def _own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # nobody else reads it before it has its mode
