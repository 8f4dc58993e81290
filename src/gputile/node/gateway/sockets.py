"""Watches the directory of the kubelet's sockets, and tells whether somebody answers at one.

A kubelet that starts again admits its pods within a second of making its socket, and fails for good those whose
devices nobody has registered by then: looking now and then would be too late for some. So inotify(7) tells at once.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_WITHIN_S = 0.2
_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR, _IN_IGNORED = 0x80, 0x100, 0x200, 0x01000000, 0x8000
_HEADER = struct.Struct("iIII")  # struct inotify_event: watch, mask, cookie, length of the name
_MOST_BYTES = 64 * 1024


def answers(path: Path) -> bool:
    """Return whether ``path`` is a socket that somebody listens at; a dead process leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_WITHIN_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


class DirectoryWatch:
    """Watches ``directory`` for names that are ``relevant``. Where that cannot be done, waiting is just waiting."""

    def __init__(self, directory: Path, relevant: Callable[[str], bool]) -> None:
        self._directory = directory
        self._relevant = relevant
        self._changed = asyncio.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._watching = False

    async def changed(self, within: float) -> None:
        if not self._watching:
            self._watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._watching = False

    def _watch(self) -> None:
        if self._descriptor < 0:
            self._descriptor = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor < 0:
                log.warning("cannot watch %s: %s", self._directory, os.strerror(ctypes.get_errno()))
                return
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        mask = _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
        watch = self.libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), mask)
        self._watching = watch >= 0

    def _read(self) -> None:
        try:
            content = os.read(self._descriptor, _MOST_BYTES)
        except OSError:
            return
        while content:
            _, mask, _, length = _HEADER.unpack_from(content)
            name = content[_HEADER.size : _HEADER.size + length].rstrip(b"\0")
            content = content[_HEADER.size + length :]
            if mask & _IN_IGNORED:  # the directory itself is gone
                self._watching = False
            if mask & _IN_IGNORED or self._relevant(os.fsdecode(name)):
                self._changed.set()
