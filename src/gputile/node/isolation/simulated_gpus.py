"""Simulates GPUs with gputile's own libcuda.so.1; its processes share the machine's state in a file.

Memory is counted over all processes, and freed when a process dies; the kernels on a GPU run one after the other.
native/simulated has the details.
"""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node.isolation.library import LibraryMissing
from gputile.node.native_layouts import (
    SIMULATED_GPU,
    SIMULATED_HEADER,
    SIMULATED_MACHINE,
    SIMULATED_MAGIC,
    SIMULATED_MOST_GPUS,
    SIMULATED_MOST_PROCESSES,
    SIMULATED_PROCESS,
)

STATE_VARIABLE: Final = "GPUTILE_FAKE_CUDA"
DRIVER: Final = "libcuda.so.1"

_HEADER, _GPU, _PROCESS = SIMULATED_HEADER.struct, SIMULATED_GPU.struct, SIMULATED_PROCESS.struct


def driver_directory() -> Path:
    """Raises LibraryMissing if gputile was installed without a C compiler."""
    directory = Path(__file__).with_name("simulated")
    if not (directory / DRIVER).exists():
        raise LibraryMissing("this gputile has no simulated driver: it was installed without a C compiler")
    return directory


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


@dataclass(frozen=True, slots=True)
class SimulatedDriver:
    """The properties of a simulated driver; a copy rate of 0 means that copies take no time."""

    context_mib: int = 0
    module_mib: int = 0
    copy_bytes_per_us: int = 0
    version: int = 13000


_DRIVER = SimulatedDriver()


class SimulatedGpus:
    """A machine with GPUs of ``mib`` MiB each.

    Its state file is created in ``directory``; the driver is in the directory ``libraries``.
    """

    def __init__(
        self,
        directory: Path,
        libraries: Path,
        mib: Sequence[int] = (16384,),
        driver: SimulatedDriver = _DRIVER,
    ) -> None:
        self.path = directory / "gpus"
        self._libraries = libraries
        self.uuids = tuple(f"GPU-{uuid.UUID(int=0x5117 << 64 | index + 1)}" for index in range(len(mib)))
        rest = (0, 0, driver.context_mib * MIB, driver.module_mib * MIB, 0, 0, 0, driver.copy_bytes_per_us)
        gpus = b"".join(
            _GPU.pack(uuid.UUID(name[4:]).bytes, size * MIB, *rest) for name, size in zip(self.uuids, mib, strict=True)
        )
        content = _HEADER.pack(SIMULATED_MAGIC, len(mib), driver.version, 0) + gpus
        self.path.write_bytes(content.ljust(SIMULATED_MACHINE.size, b"\0"))

    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(self._libraries), *([inherited] if inherited else [])]
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
            pid, *rest = _PROCESS.unpack_from(content, start + index * _PROCESS.size)
            used, busy = (
                tuple(rest[:SIMULATED_MOST_GPUS]),
                tuple(rest[SIMULATED_MOST_GPUS : 2 * SIMULATED_MOST_GPUS]),
            )
            if pid:
                found.append(SimulatedProcess(pid, used, busy, rest[-1]))
        return found
