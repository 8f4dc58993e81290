"""A container on the simulated machine or a real one: an allocation's files, and programs under the library."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from hatch_build import FLAGS, LINK, SOURCES, build_library, library_sources

from gputile.node.isolation.library import LIMITS, USAGE, GpuLimit, encode_limits
from gputile.node.native_layouts import USAGE_BYTES
from tests.fakes.cuda import FakeGpus

ROOT = Path(__file__).resolve().parents[2]
_CACHE = ROOT / ".cache" / "native"
_HERE = Path(__file__).parent


def _key(*paths: Path, extra: str = "") -> str:
    content = b"".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(content + extra.encode()).hexdigest()[:16]


@cache
def library() -> Path:
    """Return the library, built from the sources as they are now, with warnings as errors."""
    path = _CACHE / _key(*SOURCES.glob("*/*.[cdh]*"), extra=str((FLAGS, LINK))) / "libgputile-cuda.so"
    if not path.exists():
        build_library(path, ["-Werror"])
    return path


@cache
def program(name: str, *flags: str, with_library: bool = False, with_driver: bool = True) -> Path:
    """Return a program of this directory, linked with the fake driver, and with the library's sources if wanted."""
    from tests.fakes.cuda import library as driver

    used = [_HERE / f"{name}.c", *(library_sources() if with_library else [])]
    path = _CACHE / _key(*used, *SOURCES.glob("*/*.[hd]*"), driver(), extra=str((flags, with_driver))) / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{name}.{os.getpid()}")
        link = ["-Wl,--no-as-needed", str(driver())] if with_driver else []
        common = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", f"-I{SOURCES}"]
        subprocess.run(["cc", *common, *flags, "-o", beside, *used, *link, "-lpthread", "-ldl"], check=True)
        beside.replace(path)
    return path


class Program(subprocess.Popen[str]):
    """A program in a container; what it prints is read line by line."""

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().removesuffix("\n")

    def go_on(self) -> None:
        """Give it the line that it waits for."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()

    def end(self) -> None:
        self.kill()
        self.communicate()


class Gpus(Protocol):
    """The GPUs of a machine, in the order of their indices, and what makes a program see them."""

    @property
    def uuids(self) -> Sequence[str]: ...

    def environment(self) -> Mapping[str, str]: ...


def _printed(process: Program) -> tuple[str, str]:
    """Wait for a program, which must succeed; return what it printed, and what on stderr."""
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, f"{process.returncode}\n{out}\n{err}"
    return out, err


class IsolatedContainer:
    """An allocation on ``gpus``: ``mib`` of memory by the position of a GPU."""

    def __init__(
        self, directory: Path, gpus: Gpus, mib: Mapping[int, int], overhead_mib: int | None = None, turn: str = ""
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._gpus = gpus
        self.limits, self.usage = directory / LIMITS, directory / USAGE
        limits = [GpuLimit(gpus.uuids[index], size) for index, size in mib.items()]
        self.limits.write_bytes(encode_limits(limits, turn, overhead_mib))
        self.usage.write_bytes(bytes(USAGE_BYTES))
        self.variables = {"GPUTILE_DIRECTORY": str(directory)}
        self._processes: list[Program] = []

    def environment(self, preload: bool = True) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        loaded = {"LD_PRELOAD": str(library())} if preload else {}
        return {**inherited, **self._gpus.environment(), **self.variables, **loaded}

    def start(self, command: Sequence[str | Path], **variables: str) -> Program:
        environment = {**self.environment(), **variables}
        pipe = subprocess.PIPE
        process = Program(command, env=environment, text=True, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            with process:
                process.kill()

    def run(self, command: Sequence[str | Path], **variables: str) -> str:
        """Run a program, which must succeed; return what it printed."""
        return _printed(self.start(command, **variables))[0]

    def begin(self, code: str, **variables: str) -> Program:
        """Start Python code with everything of ``client`` in it."""
        return self.start([sys.executable, "-c", f"from tests.native.client import *\n{code}"], **variables)

    def python(self, code: str, **variables: str) -> str:
        """Run Python code, which must succeed; return what it printed."""
        return _printed(self.begin(code, **variables))[0]

    def hold(self, code: str) -> Program:
        """Start Python code that prints a line when it has what it holds, and goes on until its input ends."""
        process = self.begin(code)
        assert process.line(), process.communicate()[1]
        return process

    def messages(self, code: str, **variables: str) -> str:
        """Run Python code, which must succeed; return what is on stderr."""
        return _printed(self.begin(code, **variables))[1]


class Container(IsolatedContainer):
    """An allocation on simulated GPUs."""

    def __init__(
        self, directory: Path, gpus: FakeGpus, mib: Mapping[int, int], overhead_mib: int | None = None
    ) -> None:
        super().__init__(directory, gpus, mib, overhead_mib)
        self.gpus = gpus
