"""Simulates GPUs with the libcuda.so.1 of native/simulated; its processes share the machine's state in a file.

Memory is counted over all processes, and freed when a process dies; the kernels on a GPU run one after the other. The
driver is built once for each state of its sources.
"""

import contextlib
import hashlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hatch_build import FLAGS, ROOT, SOURCES, compiler
from native.layouts import (
    SIMULATED_GPU,
    SIMULATED_HEADER,
    SIMULATED_MACHINE,
    SIMULATED_MAGIC,
    SIMULATED_MOST_GPUS,
    SIMULATED_MOST_PROCESSES,
    SIMULATED_PROCESS,
)

from gputile.api.quantity import MIB

__all__ = ["MIB", "NAME", "STATE_VARIABLE", "FakeGpus", "SimulatedGpu", "SimulatedProcess", "library"]

NAME = "libcuda.so.1"
STATE_VARIABLE = "GPUTILE_FAKE_CUDA"
_SIMULATION = SOURCES / "simulated"
_CACHE = ROOT / ".cache" / "fakes"
_HEADER, _GPU, _PROCESS = SIMULATED_HEADER.struct, SIMULATED_GPU.struct, SIMULATED_PROCESS.struct


@cache
def library() -> Path:
    """Return the simulated driver; beside it lies a libnvidia-ml.so.1 that reports the same GPUs' memory."""
    sources = [*sorted(_SIMULATION.iterdir()), SOURCES / "base" / "cuda_types.h"]
    content = b"".join(path.read_bytes() for path in sources)
    directory = _CACHE / f"cuda-{hashlib.sha256(content).hexdigest()[:16]}"
    if not directory.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        nvml = _SIMULATION / "nvml.c"
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            built = Path(scratch, "built")
            built.mkdir()
            _build(built / NAME, [source for source in sorted(_SIMULATION.glob("*.c")) if source != nvml])
            _build(built / "libnvidia-ml.so.1", [nvml])
            with contextlib.suppress(OSError):  # another process was first
                built.rename(directory)
    return directory / NAME


def _build(output: Path, sources: Sequence[Path]) -> None:
    link: list[str | Path] = [
        "-shared",
        "-Wl,-Bsymbolic",
        f"-Wl,-soname,{output.name}",
        "-o",
        output,
        *sources,
        "-lpthread",
        "-ldl",
    ]
    subprocess.run([compiler(), *FLAGS, "-Werror", f"-I{SOURCES}", *link], check=True)


@dataclass(frozen=True)
class SimulatedGpu:
    """The state of a simulated GPU, in bytes and nanoseconds."""

    uuid: str
    total: int
    used: int
    peak: int
    busy_ns: int
    launches: int


@dataclass(frozen=True)
class SimulatedProcess:
    """A present or past process; ``used`` and ``busy_ns`` have a value for each GPU of the machine."""

    pid: int
    used: tuple[int, ...]
    busy_ns: tuple[int, ...]
    launches: int


class FakeGpus:
    """A machine with GPUs of ``mib`` MiB each; its state file is created in ``directory``.

    If ``copy_bytes_per_us`` is 0, copies take no time.
    """

    def __init__(
        self,
        directory: Path,
        mib: Sequence[int] = (16384,),
        context_mib: int = 0,
        module_mib: int = 0,
        copy_bytes_per_us: int = 0,
        driver_version: int = 13000,
    ) -> None:
        self.path = directory / "gpus"
        self.uuids = tuple(f"GPU-{uuid.UUID(int=0x5117 << 64 | index + 1)}" for index in range(len(mib)))
        rest = (0, 0, context_mib * MIB, module_mib * MIB, 0, 0, 0, copy_bytes_per_us)
        gpus = b"".join(
            _GPU.pack(uuid.UUID(name[4:]).bytes, size * MIB, *rest) for name, size in zip(self.uuids, mib, strict=True)
        )
        content = _HEADER.pack(SIMULATED_MAGIC, len(mib), driver_version, 0) + gpus
        self.path.write_bytes(content.ljust(SIMULATED_MACHINE.size, b"\0"))

    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(library().parent), *([inherited] if inherited else [])]
        return {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(self.path)}

    def gpus(self) -> list[SimulatedGpu]:
        """Return the state of each GPU; memory of a killed process stays in use until another process needs it."""
        content = self.path.read_bytes()
        count = _HEADER.unpack_from(content)[1]
        found = []
        for index in range(count):
            values = _GPU.unpack_from(content, _HEADER.size + index * _GPU.size)
            name, total, used, peak, _, _, _, busy, launches, _ = values
            found.append(SimulatedGpu(f"GPU-{uuid.UUID(bytes=name)}", total, used, peak, busy, launches))
        return found

    def processes(self) -> list[SimulatedProcess]:
        content = self.path.read_bytes()
        start, found = _HEADER.size + SIMULATED_MOST_GPUS * _GPU.size, []
        for index in range(SIMULATED_MOST_PROCESSES):
            pid, _, *rest = _PROCESS.unpack_from(content, start + index * _PROCESS.size)
            used = tuple(rest[:SIMULATED_MOST_GPUS])
            busy = tuple(rest[SIMULATED_MOST_GPUS : 2 * SIMULATED_MOST_GPUS])
            if pid:
                found.append(SimulatedProcess(pid, used, busy, rest[-1]))
        return found
