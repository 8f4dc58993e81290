"""Simulates GPUs by a libcuda.so.1 of our own and a machine file that its processes share.

Memory is counted for all processes together and given back when one dies; kernels take time on a GPU, one after the
other. How long, and what else a call does, say the sources of the library, native/simulated.
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
    """Return where this install has the simulated driver.

    Raises:
        LibraryMissing: gputile was installed without a C compiler.
    """
    directory = Path(__file__).with_name("simulated")
    if not (directory / DRIVER).exists():
        raise LibraryMissing("this gputile has no simulated driver: it was installed without a C compiler")
    return directory


@dataclass(frozen=True)
class SimulatedGpu:
    """What a GPU is and has done: bytes, nanoseconds."""

    uuid: str
    total: int
    used: int
    peak: int
    busy_ns: int
    launches: int


@dataclass(frozen=True)
class SimulatedProcess:
    """What a process that is or was on the machine holds and has done, by the machine's numbers of the GPUs."""

    pid: int
    used: tuple[int, ...]
    busy_ns: tuple[int, ...]
    launches: int


@dataclass(frozen=True, slots=True)
class SimulatedDriver:
    """What the driver itself takes of a GPU, for each context and module, MiB; how fast it copies; its version."""

    context_mib: int = 0
    module_mib: int = 0
    copy_bytes_per_us: int = 0
    version: int = 13000


_DRIVER = SimulatedDriver()


class SimulatedGpus:
    """A machine with GPUs of ``mib`` MiB; its file is made in ``directory``. ``libraries`` is where the driver is."""

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
        """Return the state of each GPU now; what a killed process held stays until somebody needs it."""
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
