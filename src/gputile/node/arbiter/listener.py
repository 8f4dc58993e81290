"""Listens on a container's socket, which only that container sees, and decides who is let in."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gputile.node.arbiter.protocol import SOCKET
from gputile.node.arbiter.rate_limit import PoolShare, TokenBucket

log = logging.getLogger(__name__)

# As many as there are slots in the file of what a container's processes hold: no other process of it has a GPU.
MOST_CONNECTIONS: Final = 512
_BACKLOG: Final = MOST_CONNECTIONS
CONNECTIONS_AT_ONCE: Final = MOST_CONNECTIONS
CONNECTIONS_PER_S: Final = 256
# All containers of a node together.
NODE_CONNECTIONS_AT_ONCE: Final = 1024
NODE_CONNECTIONS_PER_S: Final = 512
SHUT_FOR_S: Final = 0.05
WITHOUT_RESOURCES_S: Final = 1.0


class Listener:
    """Hands over those who connect to a listening socket in ``directory``, which it owns, to ``arrive``: one at a time.

    Who connects and hangs up in a loop is let in no more often than ``CONNECTIONS_PER_S``; the others wait in the
    kernel.
    """

    def __init__(
        self, directory: Path, arrive: Callable[[socket.socket], None], allowance: TokenBucket | PoolShare | None = None
    ) -> None:
        """Listen.

        Raises:
            OSError: the directory is gone, or cannot be written.
        """
        self._sock, self._file = _listen_in(directory)
        self._directory = directory
        self._arrive = arrive
        self._allowance = allowance or TokenBucket(CONNECTIONS_AT_ONCE, CONNECTIONS_PER_S)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._open()

    @property
    def is_reached(self) -> bool:
        """Whether the directory has this very socket: it may have been removed and made anew meanwhile."""
        try:
            found = os.lstat(self._directory / SOCKET)
        except OSError:
            return False
        return os.path.samestat(found, self._file)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _open(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _shut(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(seconds, self._open)

    def _accept(self) -> None:
        if not self._allowance.left(self._loop.time()):
            self._shut(SHUT_FOR_S)
            return
        try:
            connected, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("nobody is let in for a moment: %s", error)
            self._shut(WITHOUT_RESOURCES_S)
            return
        self._allowance.spend(1)
        connected.setblocking(False)
        self._arrive(connected)


def _listen_in(directory: Path) -> tuple[socket.socket, os.stat_result]:
    """Return a listening socket in ``directory``, in the place of one that was left there, and its file.

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
            file = os.stat(beside, dir_fd=fd, follow_symlinks=False)
            os.rename(beside, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        made.close()
        raise
    return made, file


def remove_from(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / SOCKET).unlink()
