"""GPUs for the tests: our own libcuda.so.1 (cudadriver/), and the file of the machine that its processes share.

Memory is counted for all processes together and given back when one dies; kernels take time on a card, one after the
other. How long, and what else a call does, says cudadriver/work.c.
Beside it lies a libnvidia-ml.so.1 (cudanvml.c) that tells the same cards' memory.
"""

import contextlib
import hashlib
import os
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATE_VARIABLE = "GPUTILE_FAKE_CUDA"
NAME = "libcuda.so.1"
MIB = 1 << 20
_SOURCES = Path(__file__).with_name("cudadriver")
_NVML_SOURCE, _NVML_NAME = Path(__file__).with_name("cudanvml.c"), "libnvidia-ml.so.1"
_TYPES = Path(__file__).resolve().parents[2] / "native" / "cuda_types.h"
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "fakes"

# As cudadriver/fake.h lays them out.
_MAGIC, _MOST_CARDS, _MOST_PROCESSES = 0x64756366, 8, 256
_HEADER = struct.Struct("<4I")
_CARD = struct.Struct("<16s9Q40x")
_PROCESS = struct.Struct(f"<i4x{2 * _MOST_CARDS + 1}Q")
_SIZE = _HEADER.size + _MOST_CARDS * _CARD.size + _MOST_PROCESSES * _PROCESS.size


@cache
def library() -> Path:
    """Return the fake driver, compiled once for each state of its sources."""
    sources = sorted(_SOURCES.glob("*.c"))
    content = b"".join(path.read_bytes() for path in [*sources, _SOURCES / "fake.h", _NVML_SOURCE, _TYPES])
    directory = _CACHE / f"cuda-{hashlib.sha256(content).hexdigest()[:16]}"
    if not directory.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            built = Path(scratch, "built")
            built.mkdir()
            _compile(built / NAME, sources)
            _compile(built / _NVML_NAME, [_NVML_SOURCE])
            with contextlib.suppress(OSError):  # another process was first
                built.rename(directory)
    return directory / NAME


def _compile(library: Path, sources: Sequence[Path]) -> None:
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    link = ["-Wl,-Bsymbolic", f"-Wl,-soname,{library.name}"]
    subprocess.run(
        ["cc", *flags, f"-I{_TYPES.parent}", *link, "-o", library, *sources, "-lpthread", "-ldl"], check=True
    )


@dataclass(frozen=True)
class CardState:
    """What a card is and has done: bytes, nanoseconds."""

    uuid: str
    total: int
    used: int
    peak: int
    busy_ns: int
    launches: int


@dataclass(frozen=True)
class ProcessState:
    """What a process that is or was on the machine holds and has done, by the machine's numbers of the cards."""

    pid: int
    used: tuple[int, ...]
    busy_ns: tuple[int, ...]
    launches: int


class FakeGpus:
    """A machine with cards of ``mib`` MiB; its file is made in ``directory``."""

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
        cards = b"".join(
            _CARD.pack(uuid.UUID(name[4:]).bytes, size * MIB, *rest) for name, size in zip(self.uuids, mib, strict=True)
        )
        content = _HEADER.pack(_MAGIC, len(mib), driver_version, 0) + cards
        self.path.write_bytes(content.ljust(_SIZE, b"\0"))

    def environment(self) -> dict[str, str]:
        """Return the environment in which another process runs on this machine."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(library().parent), *([inherited] if inherited else [])]
        return {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(self.path)}

    def cards(self) -> list[CardState]:
        """Return the state of each card now; what a killed process held stays until somebody needs it."""
        content = self.path.read_bytes()
        count = _HEADER.unpack_from(content)[1]
        found = []
        for index in range(count):
            values = _CARD.unpack_from(content, _HEADER.size + index * _CARD.size)
            name, total, used, peak, _, _, _, busy, launches, _ = values
            found.append(CardState(f"GPU-{uuid.UUID(bytes=name)}", total, used, peak, busy, launches))
        return found

    def processes(self) -> list[ProcessState]:
        """Return the processes that hold something or did something."""
        content = self.path.read_bytes()
        start, found = _HEADER.size + _MOST_CARDS * _CARD.size, []
        for index in range(_MOST_PROCESSES):
            pid, *rest = _PROCESS.unpack_from(content, start + index * _PROCESS.size)
            used, busy = tuple(rest[:_MOST_CARDS]), tuple(rest[_MOST_CARDS : 2 * _MOST_CARDS])
            if pid:
                found.append(ProcessState(pid, used, busy, rest[-1]))
        return found
