"""A container's socket: in the directory that only this container sees."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

from gputile.arbiter.protocol import SOCKET

_BACKLOG: Final = 64


def listen_in(directory: Path) -> socket.socket:
    """Return a listening socket in ``directory``, in the place of one that was left there.

    Raises:
        OSError: the directory is gone, or cannot be written.
    """
    beside = f".{SOCKET}.{os.getpid()}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=fd)
            # The path of a socket has 107 bytes, and the directory's alone can have more.
            made.bind(f"/proc/self/fd/{fd}/{beside}")
            os.chmod(beside, 0o666, dir_fd=fd)  # noqa: S103 - the container's user can be anybody
            made.listen(_BACKLOG)
            os.rename(beside, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        made.close()
        raise
    return made


def remove_from(directory: Path) -> None:
    """Remove a socket that nobody listens on any more."""
    with contextlib.suppress(OSError):
        (directory / SOCKET).unlink()
