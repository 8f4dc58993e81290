"""Processes that keep simulated GPUs busy through the library's client of the arbiter (busy.c)."""

import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Self

from tests.conftest import HANGS_S
from tests.fakes import cuda
from tests.native.sanitizing import without_randomization

NATIVE = Path(__file__).resolve().parents[3] / "native"
SOURCE = Path(__file__).with_name("busy.c")


@cache
def program(sanitizer: str = "") -> Path:
    """Return the program, compiled once for each state of its sources."""
    sources = [SOURCE, *sorted((NATIVE / "timeslice").glob("*.c"))]
    sources += sorted((NATIVE / "base").glob("*.c"))
    sources += [NATIVE / "accounting" / "shared_usage.c"]
    content = b"".join(path.read_bytes() for path in [*sources, *sorted(NATIVE.glob("*/*.h"))])
    name = f"busy-{hashlib.sha256(content).hexdigest()[:16]}{sanitizer}"
    path = cuda.library().parent.parent / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            built = Path(scratch, name)
            flags = [
                "-O2",
                "-g",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Wshadow",
                "-Wconversion",
                "-Werror",
                f"-I{NATIVE}",
            ]
            flags += [f"-fsanitize={sanitizer}"] if sanitizer else []
            libraries = [f"-L{cuda.library().parent}", f"-l:{cuda.NAME}", "-lpthread", "-ldl"]
            subprocess.run(["cc", *flags, "-o", built, *sources, *libraries], check=True)
            built.rename(path)
    return path


class Busy:
    """One process of a container, busy from ``begin`` on for ``seconds``.

    ``socket`` None is a process without the client. ``kernel_ns`` is how long each of its kernels takes.
    """

    def __init__(
        self,
        gpus: cuda.FakeGpus,
        socket: Path | None,
        seconds: float = 600.0,
        kernel_ns: int = 1_000_000,
        style: str = "async",
        threads: int = 1,
        indices: Sequence[int] = (0,),
        sanitizer: str = "",
    ) -> None:
        self._gpus = gpus
        uuids = ",".join(gpus.uuids[gpu] for gpu in indices)
        environment = os.environ | gpus.environment() | {"UUIDS": uuids, "CUDA_VISIBLE_DEVICES": uuids}
        how = style if socket is not None else "alone"
        command: list[str | Path] = [
            *(without_randomization() if sanitizer else ()),
            program(sanitizer),
            str(socket or ""),
            str(seconds),
            str(kernel_ns),
            how,
            str(threads),
        ]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"x")
        self.process.stdin.flush()

    def busy(self, gpu: int = 0) -> int:
        """Return how long its kernels have taken on a GPU, in nanoseconds of the GPU's own accounts."""
        found = [p.busy_ns[gpu] for p in self._gpus.processes() if p.pid == self.process.pid]
        return found[0] if found else 0

    def share_over(self, seconds: float, gpu: int = 0) -> float:
        """Return what part of so many seconds the GPU works for it."""
        begin, had = time.monotonic(), self.busy(gpu)
        time.sleep(seconds)
        got = self.busy(gpu) - had
        return got / 1e9 / (time.monotonic() - begin)

    def end(self, early: bool = False) -> int:
        """Wait for its end, or ask for it; return what its kernels took."""
        if early:
            self.signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=HANGS_S)
        assert self.process.returncode == 0, self.process.returncode
        return int(out)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that has no time of its own."""
    end = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def measure(processes: Sequence[Busy], device_ns: int, gpu: int = 0, settle_ns: int = 200_000_000) -> list[int]:
    """Return what each process gets of a GPU until they have got ``device_ns`` together."""
    begin = sum(process.busy(gpu) for process in processes)
    until(lambda: sum(process.busy(gpu) for process in processes) - begin > settle_ns, "nobody gets anything")
    before = [process.busy(gpu) for process in processes]
    until(lambda: sum(p.busy(gpu) for p in processes) - sum(before) > device_ns, "the GPU stands still")
    return [process.busy(gpu) - had for process, had in zip(processes, before, strict=True)]
