"""Child processes that cannot outlive the run, with their output in a file, and what they take from /proc."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

# The kernel kills a child when the thread that started it ends, so one thread that lasts starts them all. A fork that
# runs Python code before exec can lock up in a process with threads, so an interpreter of its own asks for the signal,
# and then becomes the program, under the same process id.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    os._exit(1)  # it died before the line above
os.execvp(sys.argv[2], sys.argv[2:])
"""
TAIL_BYTES = 4000
PATIENCE_S = 300.0  # a shared machine may stand still for a while; what has not come true by then never does


class ProcessFailed(RuntimeError):
    """A child process ended early or never became ready; the message has the end of its log."""


class Process:
    """A program in a process group of its own that dies with this process, and can be started again.

    As a context manager it is stopped at the end of the block.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self._environment = None if environment is None else {**os.environ, **environment}
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = False

    def start(self) -> None:
        """Start the program; its log goes on where an earlier start left it."""
        if self.alive:
            raise ProcessFailed(f"{self.name} runs already")
        self._child = _SPAWNER.submit(self._spawn).result()
        self._killed = False

    def _spawn(self) -> subprocess.Popen[bytes]:
        wrapped = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *self.command]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the latest start."""
        if self._child is None:
            raise ProcessFailed(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What it exited with; a negative number is the signal that ended it; None while it runs."""
        return None if self._child is None else self._child.poll()

    def stop(self, patience: float = PATIENCE_S) -> None:
        """Ask it to end (SIGTERM), and kill it after ``patience`` seconds."""
        if self._child is None or self._killed:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        self.kill()

    def kill(self) -> None:
        """End it and its children as a power cut would (SIGKILL)."""
        if self._child is not None:
            if not self._killed:
                self._signal(signal.SIGKILL)
            self._killed = True  # from here on the number of the group may be somebody else's
            self._child.wait()

    def pause(self) -> None:
        """Stop its clock (SIGSTOP): it holds its connections and leases and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on after ``pause``."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group: what the program itself has started too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log_text(self) -> str:
        """Return all it has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """Return the end of what it has written, for an error message."""
        return self.log_text()[-TAIL_BYTES:]

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            ProcessFailed: it ended; with its exit code and the end of its log.
        """
        if not self.alive:
            raise ProcessFailed(f"{self.name} ended with exit code {self.exit_code}:\n{self.log_tail()}")

    def wait_ready(self, check: Callable[[], bool], timeout: float = PATIENCE_S, interval: float = 0.05) -> None:
        """Wait until ``check`` holds.

        Raises:
            ProcessFailed: the process ended, or ``timeout`` seconds passed; with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while not check():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} was not ready after {timeout:g} s:\n{self.log_tail()}")
            time.sleep(interval)


def children(pid: int) -> list[int]:
    """Return the process IDs of a process's children; none where it has gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has gone
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):  # this one has
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def command(pid: int) -> str:
    """Return a process's command line, "" where it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def daemons(state: Path) -> list[int]:
    """Return the process IDs of the MPS control daemons that run, by what an agent has written into its state."""
    found = []
    for file in state.glob("mps/*/process"):
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):  # it is just written, or removed
            found.append(int(file.read_text().split()[0]))
    return sorted(pid for pid in found if command(pid))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: Iterable[int]) -> float:
    """Return the memory that these processes have in RAM, what they share counted once (PSS), in MiB."""
    kib = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024
