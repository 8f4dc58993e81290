"""Runs NVIDIA's MPS control daemons of a node in mode ``mps`` (M7).

Each GPU has a daemon, and so has each set of GPUs that a pod uses together.

A daemon has one pipe directory, which its clients find through ``CUDA_MPS_PIPE_DIRECTORY``. A
client that fails takes down only the clients of its own daemon. A client can use only one daemon.
So a pod on several GPUs needs a daemon that serves them all. This daemon takes turns with the
daemons of the single GPUs. The client's environment limits its memory (``allocation.environment``).

The daemons and their clients survive a restart of the agent's process. The agent records the
process of each daemon in a file, by which the next agent finds the daemon. The record includes the
start time of the process, because the process ID may be used again.

Containers mount the pipe directory and must be able to write there. So it is on a file system that
is mounted ``nosuid`` (``usage_files``), and is emptied before a daemon starts. Its mode lets other
users pass through it, because a daemon runs its servers as the users of its clients. Source:
NVIDIA's "Multi-Process Service", chapters "Environment Variables" and "Device Memory Limit".
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import signal
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node.agent.allocation import PIPE_ENV
from gputile.node.agent.files.node_mounts import SEVERAL
from gputile.node.agent.files.usage_files import unsafe_for_containers
from gputile.support.files import read_whole
from gputile.support.process_supervision import Restarts, end

log = logging.getLogger(__name__)

GpuUuids = tuple[str, ...]
"""The UUIDs of the GPUs that one daemon serves, in the order of their indices."""


def daemon_name(gpus: GpuUuids) -> str:
    if len(gpus) == 1:
        return gpus[0]
    return f"{SEVERAL}{hashlib.sha256(' '.join(gpus).encode()).hexdigest()[:32]}"


_STOPPED, _ZOMBIE = 0, "Z"
_ALIVE_EVERY_S = 1.0
_MOST_BYTES = 4096


class DaemonProcess:
    """A running daemon, which is a child of this process or was started by an earlier agent."""

    def __init__(
        self, pid: int, file: Path, child: asyncio.subprocess.Process | None = None
    ) -> None:
        self.pid = pid
        self._file = file
        self._child = child
        self._start = _start_of(pid)

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], file: Path
    ) -> "DaemonProcess":
        """Start a daemon, and record its process in ``file``. Raises OSError if it cannot start."""
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=asyncio.subprocess.DEVNULL
        )
        daemon = cls(child.pid, file, child)
        daemon._write()
        return daemon

    @classmethod
    def left(cls, file: Path) -> "DaemonProcess | None":
        """Return the daemon that an earlier agent recorded in ``file``, or None if it has ended."""
        try:
            pid, start = map(int, read_whole(file, _MOST_BYTES).split())
        except (OSError, ValueError):
            return None
        found = cls(pid, file)
        return found if start and found._start == start and found.alive else None

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.returncode is None
        return self._start != _STOPPED and _start_of(self.pid) == self._start

    async def wait(self) -> str:
        if self._child is not None:
            code = await self._child.wait()
            self._file.unlink(missing_ok=True)
            return f"it ended with status {code}"
        # The end of a process that is not a child causes no event.
        while self.alive:  # noqa: ASYNC110
            await asyncio.sleep(_ALIVE_EVERY_S)
        self._file.unlink(missing_ok=True)
        return "it ended"

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            self._file.write_text(f"{self.pid} {self._start}\n")

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, or 0 if the process has ended.

    proc_pid_stat(5) defines the value.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _STOPPED
    return _STOPPED if fields[0] == _ZOMBIE else int(fields[19])


PROGRAM: Final = "nvidia-cuda-mps-control"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_AFTER_S = 0.5
STOP_WITHIN_S = 3.0
LOGS: Final = "mps-logs"  # beside the daemons' directory, and not mounted by containers
# A daemon logs each connection to the node's disk, and the number of connections has no limit.
MOST_LOG_BYTES = 4 * MIB  # for each file
LOOK_EVERY_S = 10.0
_BLOCK = 512  # stat(2), st_blocks
_PASSED = 0o711
_SOCKET = "control_privileged"  # the longest name of the daemon's sockets
_LONGEST_SOCKET = 107  # bytes of a path, unix(7)
_PROCESS = "process"  # the file that names the daemon's process


def cut_back(directory: Path, most: int) -> None:
    """In ``directory``, truncate each file that uses more than ``most`` bytes of the disk.

    A process that continues to write at its old offset leaves a hole in the file. The hole uses no
    disk space.
    """
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_blocks * _BLOCK > most:
                os.truncate(path, 0)
                log.info("truncated %s, which had more than %d bytes", path, most)


def empty(directory: Path) -> None:
    """Remove everything in ``directory`` that can be removed, without following symbolic links."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError, RecursionError):  # directories may be nested deeply
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)


class MpsDaemons:
    """Runs the daemons of the wanted GPUs, and restarts each daemon that ends."""

    def __init__(self, directory: Path, program: str = PROGRAM) -> None:
        self._directory = directory
        self._program = program
        self._tasks: dict[GpuUuids, asyncio.Task[None]] = {}
        self._up: defaultdict[GpuUuids, asyncio.Event] = defaultdict(asyncio.Event)
        self._down: dict[GpuUuids, str] = {}

    @property
    def problem(self) -> str | None:
        """Why mode ``mps`` cannot be served, or None if it can be.

        The reason is that the program or a safe directory is missing, or that no daemon runs.
        """
        if (unable := self._unable()) is not None:
            return unable
        if self._down and self._tasks.keys() <= self._down.keys():
            gpus, why = next(iter(self._down.items()))
            return f"the MPS control daemon of {', '.join(gpus)} does not run: {why}"
        return None

    @property
    def without_daemon(self) -> dict[str, str]:
        return {gpus[0]: why for gpus, why in self._down.items() if len(gpus) == 1}

    def pipes(self, gpus: GpuUuids) -> Path:
        return self._directory / daemon_name(gpus) / "pipe"

    async def until_up(self, gpus: GpuUuids) -> None:
        await self._up[gpus].wait()

    def want(self, sets: Iterable[GpuUuids]) -> None:
        wanted = set(sets) if self._unable() is None else set()
        for gpus in self._tasks.keys() - wanted:
            self._tasks.pop(gpus).cancel()
            self._down.pop(gpus, None)
        for gpus in wanted - self._tasks.keys():
            self._tasks[gpus] = asyncio.get_running_loop().create_task(self._supervise(gpus))

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self.want(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _supervise(self, gpus: GpuUuids) -> None:
        name = f"the MPS control daemon of {', '.join(gpus)}:"
        restarts = Restarts(
            name, first=FIRST_PAUSE_S, longest=LONGEST_PAUSE_S, steady_after=LONGEST_PAUSE_S
        )

        async def run() -> str:
            try:
                self._down[gpus] = await self._run(gpus)
            except OSError as error:
                self._down[gpus] = str(error)
            return self._down[gpus]

        await restarts.supervise(run)

    async def _run(self, gpus: GpuUuids) -> str:
        """Run one daemon until it ends, and return why it ended."""
        length = len(os.fsencode(self.pipes(gpus) / _SOCKET))
        if length > _LONGEST_SOCKET:
            return (
                f"the paths of its sockets in {self.pipes(gpus)} would have {length} bytes, but "
                f"Linux allows {_LONGEST_SOCKET}: set a shorter directory (--state-dir, "
                "agent.stateDir in the chart)"
            )
        logs = self._directory.with_name(LOGS) / daemon_name(gpus)
        for directory in (self.pipes(gpus), logs):
            directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / daemon_name(gpus) / _PROCESS
        environment = {
            "PATH": "/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin",
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            PIPE_ENV: str(self.pipes(gpus)),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        daemon = DaemonProcess.left(file)
        if daemon is None:
            empty(self.pipes(gpus))
            command = (shutil.which(self._program) or self._program, "-f")
            daemon = await DaemonProcess.start(command, environment, file)
        else:
            log.info(
                "the MPS control daemon of %s still runs as process %d", ", ".join(gpus), daemon.pid
            )
        ending = asyncio.get_running_loop().create_task(daemon.wait())
        try:
            await asyncio.wait((ending,), timeout=STEADY_AFTER_S)
            if not ending.done():
                self._up[gpus].set()
                self._down.pop(gpus, None)
            while not ending.done():
                cut_back(logs, MOST_LOG_BYTES)
                await asyncio.wait((ending,), timeout=LOOK_EVERY_S)
            return ending.result()
        finally:
            self._up[gpus].clear()
            ending.cancel()
            if daemon.alive:
                await end(daemon, daemon.terminate, STOP_WITHIN_S)

    def _unable(self) -> str | None:
        if shutil.which(self._program) is None:
            return (
                f"{self._program} is not installed on this node: set agent.mps in the chart, "
                "install NVIDIA's MPS, or choose another mode"
            )
        remedy = "mount a file system there with nosuid (agent.mps and agent.usageMiB in the chart)"
        return unsafe_for_containers(self._directory.resolve(), _PASSED, remedy)
