"""Runs a daemon that outlives its agent: the process is written down, and the next agent finds it.

The agent's process may die and be started anew while its container goes on; a daemon then goes on too, and with it the
pods that use it. A process ID alone could be another process's by now, so the time of its start is written with it.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputile.support.files import read_whole

_STOPPED, _ZOMBIE = 0, "Z"
_LOOK_EVERY_S = 1.0
_MOST_BYTES = 4096


class DaemonProcess:
    """One running daemon, our child or one that an earlier agent has left. ``pid`` is its process ID."""

    def __init__(self, pid: int, file: Path, child: asyncio.subprocess.Process | None = None) -> None:
        self.pid = pid
        self._file = file
        self._child = child
        self._start = _start_of(pid)

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], file: Path) -> "DaemonProcess":
        """Start a daemon, and write it down in ``file``.

        Raises:
            OSError: it cannot be started.
        """
        child = await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.DEVNULL)
        daemon = cls(child.pid, file, child)
        daemon._write()
        return daemon

    @classmethod
    def left(cls, file: Path) -> "DaemonProcess | None":
        """Return the daemon that an earlier agent has written down, None where it does not run any more."""
        try:
            pid, start = map(int, read_whole(file, _MOST_BYTES).split())
        except (OSError, ValueError):
            return None
        found = cls(pid, file)
        return found if start and found._start == start and found.alive else None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        if self._child is not None:
            return self._child.returncode is None
        return self._start != _STOPPED and _start_of(self.pid) == self._start

    async def wait(self) -> str:
        """Return when it has ended, and how."""
        if self._child is not None:
            code = await self._child.wait()
            self._file.unlink(missing_ok=True)
            return f"it ended with status {code}"
        while self.alive:  # noqa: ASYNC110 - nobody else tells when a process ends that is not a child
            await asyncio.sleep(_LOOK_EVERY_S)
        self._file.unlink(missing_ok=True)
        return "it ended"

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self._signal(signal.SIGKILL)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self._file.write_text(f"{self.pid} {self._start}\n")

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (proc_pid_stat(5)); 0 where none runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _STOPPED
    return _STOPPED if fields[0] == _ZOMBIE else int(fields[19])
