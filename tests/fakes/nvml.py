"""Machines for the tests: our own libnvidia-ml.so.1 (nvml.c), and the files that tell it what to present.

The real binding (nvidia-ml-py) runs on it: in this process after ``preload``, in others by ``environment``.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

STATE_VARIABLE = "GPUTILE_FAKE_NVML"
GPU_IS_LOST, UNKNOWN_ERROR, DRIVER_NOT_LOADED, TIMEOUT = 15, 999, 9, 10
_SOURCE = Path(__file__).with_name("nvml.c")
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "fakes"
_NAME = "libnvidia-ml.so.1"
_MIB = 1 << 20
SYSTEM, NODE, SWITCH = 50, 40, 10  # nvmlGpuTopologyLevel_t
TO_GPU, TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t


@cache
def library() -> Path:
    """Return the fake library, compiled once for each state of its source."""
    source = _SOURCE.read_bytes()
    path = _CACHE / f"nvml-{hashlib.sha256(source).hexdigest()[:16]}" / _NAME
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            built = Path(scratch, _NAME)
            flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{_NAME}"]
            subprocess.run(["cc", *flags, "-o", built, _SOURCE, "-lpthread"], check=True)
            built.rename(path)
    return path


@cache
def preload() -> None:
    """Load the fake library into this process: a later dlopen of its soname finds it."""
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)


def environment(state: Path) -> dict[str, str]:
    """Return the environment in which another process sees the machine of ``state``."""
    return {"LD_LIBRARY_PATH": str(library().parent), STATE_VARIABLE: str(state)}


@dataclass
class Instance:
    """A MIG device; ``gpu_slices`` and ``compute_slices`` are the parts of the GPU that it has."""

    gi: int
    ci: int
    mib: int
    gpu_slices: int
    compute_slices: int
    uuid: str
    name: str


@dataclass
class Link:
    """An active NVLink: nvmlNvlinkVersion_t, what is at its end, and the bus ID of that."""

    version: int
    kind: int
    bus: str


@dataclass
class FakeGpu:
    """One GPU; ``error`` is what every call on it answers, 0 for success; -1: it does not measure that."""

    uuid: str
    name: str
    mib: int
    bus: str
    numa: int = -1
    architecture: int = 0
    capability: tuple[int, int] = (7, 0)
    pcie: tuple[int, int] = (3, 16)
    mig: tuple[int, int] | None = None
    rows: tuple[int, int] = (0, 0)
    recovery: int | None = None
    error: int = 0
    used: int = 0
    busy: int = -1
    celsius: int = -1
    milliwatts: int = -1
    ecc: tuple[int, int] = (-1, -1)
    links: list[Link] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)

    def lines(self, index: int) -> Iterator[tuple[object, ...]]:
        gpu = ("gpu", index)
        yield *gpu, "uuid", self.uuid
        yield *gpu, "name", self.name
        yield *gpu, "bus", self.bus
        yield *gpu, "memory", self.mib * _MIB
        yield *gpu, "numa", self.numa
        yield *gpu, "architecture", self.architecture
        yield *gpu, "error", self.error
        yield *gpu, "capability", *self.capability
        yield *gpu, "pcie", *self.pcie
        yield *gpu, "rows", *self.rows
        yield *gpu, "ecc", *self.ecc
        for name in ("used", "busy", "celsius", "milliwatts"):
            yield *gpu, name, getattr(self, name)
        if self.mig is not None:
            yield *gpu, "mig", *self.mig
        if self.recovery is not None:
            yield *gpu, "recovery", self.recovery
        for number, link in enumerate(self.links):
            yield *gpu, "link", number, link.version, link.kind, link.bus
        for m in self.instances:
            yield *gpu, "instance", m.gi, m.ci, m.mib * _MIB, m.gpu_slices, m.compute_slices, m.uuid, m.name


@dataclass
class FakeMachine:
    """A machine, written to ``path`` by ``write``; the methods below change it and write it again."""

    path: Path
    gpus: list[FakeGpu]
    levels: dict[tuple[str, str], int] = field(default_factory=dict)
    driver: str = "570.133.20"
    cuda: int = 12080
    init: int = 0
    failures: dict[tuple[str, int], int] = field(default_factory=dict)
    xids: list[tuple[str, int, int, int]] = field(default_factory=list)

    def write(self) -> None:
        lines: list[tuple[object, ...]] = [("driver", self.driver), ("cuda", self.cuda), ("init", self.init)]
        for index, gpu in enumerate(self.gpus):
            lines += gpu.lines(index)
        index_of = {gpu.uuid: index for index, gpu in enumerate(self.gpus)}
        lines += [
            ("ancestor", index_of[one], index_of[other], level)
            for (one, other), level in self.levels.items()
            if one in index_of and other in index_of
        ]
        lines += [("fail", function, gpu, code) for (function, gpu), code in self.failures.items()]
        lines += [
            ("xid", sequence, index_of[uuid], code, gi, ci)
            for sequence, (uuid, code, gi, ci) in enumerate(self.xids, start=1)
            if uuid in index_of
        ]
        scratch = self.path.with_suffix(".new")
        scratch.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
        scratch.rename(self.path)

    def rename(self, uuids: Sequence[str]) -> None:
        """Give the GPUs other UUIDs, in their order."""
        named = {gpu.uuid: uuid for gpu, uuid in zip(self.gpus, uuids, strict=True)}
        self.levels = {(named[one], named[other]): level for (one, other), level in self.levels.items()}
        for gpu in self.gpus:
            gpu.uuid = named[gpu.uuid]
        self.write()

    def lose(self, index: int, error: int = GPU_IS_LOST) -> None:
        self.gpus[index].error = error
        self.write()

    def recover(self, index: int) -> None:
        self.gpus[index].error = 0
        self.write()

    def take_out(self, index: int) -> FakeGpu:
        """The GPU is gone from the driver's list, and those after it count one less."""
        gpu = self.gpus.pop(index)
        self.write()
        return gpu

    def put_back(self, index: int, gpu: FakeGpu) -> None:
        self.gpus.insert(index, gpu)
        self.write()

    def xid(self, index: int, code: int, gi: int = -1, ci: int = -1) -> None:
        self.xids.append((self.gpus[index].uuid, code, gi, ci))
        self.write()

    def fail(self, function: str, code: int = UNKNOWN_ERROR, gpu: int = -1) -> None:
        self.failures[function, gpu] = code
        self.write()

    def mend(self) -> None:
        self.failures.clear()
        self.write()

    def unload(self, code: int = DRIVER_NOT_LOADED) -> None:
        self.init = code
        self.write()

    def load(self) -> None:
        self.init = 0
        self.write()


def a100_nvswitch(path: Path) -> FakeMachine:
    """8 x A100-SXM4-80GB, each with 12 NVLinks into NVSwitch."""
    gpus = _gpus(8, "NVIDIA A100-SXM4-80GB", 81920, capability=(8, 0), pcie=(4, 16), mig=(0, 0))
    for gpu in gpus:
        gpu.links = [Link(4, TO_SWITCH, f"00000000:C{i % 6}:00.0") for i in range(12)]
    return _written(FakeMachine(path, gpus, _levels(gpus)))


# NVLinks between the GPUs of a DGX-1 with V100, as `nvidia-smi topo -m` prints them.
CUBE_MESH = ("01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120")


def v100_cube_mesh(path: Path) -> FakeMachine:
    """8 x V100-SXM2-32GB, each with 6 NVLinks to four others (the hybrid cube mesh)."""
    gpus = _gpus(8, "Tesla V100-SXM2-32GB", 32510)
    for gpu, row in zip(gpus, CUBE_MESH, strict=True):
        gpu.links = [Link(2, TO_GPU, peer.bus) for peer, n in zip(gpus, row, strict=True) for _ in range(int(n))]
    return _written(FakeMachine(path, gpus, _levels(gpus)))


def t4_pcie(path: Path, count: int = 4) -> FakeMachine:
    """T4s on PCIe, half of them on each NUMA node."""
    gpus = _gpus(count, "Tesla T4", 15109, capability=(7, 5))
    return _written(FakeMachine(path, gpus, _levels(gpus)))


def t4_of_15_gib(path: Path) -> FakeMachine:
    """4 GPUs of 15 GiB, as the documents show a node."""
    gpus = _gpus(4, "Tesla T4", 15360, capability=(7, 5))
    return _written(FakeMachine(path, gpus, _levels(gpus)))


def mixed(path: Path) -> FakeMachine:
    """2 x T4 and 2 x V100."""
    gpus = [*_gpus(2, "Tesla T4", 15109, capability=(7, 5)), *_gpus(2, "Tesla V100-PCIE-16GB", 16130, first=2)]
    return _written(FakeMachine(path, gpus, _levels(gpus)))


def mig_a100(path: Path) -> FakeMachine:
    """2 x A100-SXM4-80GB: the first split into 3g.40gb, 2g.20gb and two 1g.10gb, the second whole."""
    gpus = _gpus(2, "NVIDIA A100-SXM4-80GB", 81920, capability=(8, 0), pcie=(4, 16), mig=(0, 0))
    gpus[0].mig = (1, 1)
    sizes = ((2, 40192, 3, "3g.40gb"), (3, 19968, 2, "2g.20gb"), (9, 9728, 1, "1g.10gb"), (10, 9728, 1, "1g.10gb"))
    gpus[0].instances = [
        Instance(gi, 0, mib, n, n, f"MIG-{gi:08x}-0000-5000-8000-000000000000", f"{gpus[0].name} MIG {profile}")
        for gi, mib, n, profile in sizes
    ]
    return _written(FakeMachine(path, gpus, _levels(gpus)))


MACHINES = {
    "a100": a100_nvswitch,
    "v100": v100_cube_mesh,
    "t4": t4_pcie,
    "fifteen": t4_of_15_gib,
    "mixed": mixed,
    "mig": mig_a100,
}


def _gpus(
    count: int,
    name: str,
    mib: int,
    first: int = 0,
    capability: tuple[int, int] = (7, 0),
    pcie: tuple[int, int] = (3, 16),
    mig: tuple[int, int] | None = None,
) -> list[FakeGpu]:
    return [
        FakeGpu(
            uuid=f"GPU-{i:08x}-1111-2222-3333-{_number_of(name):012x}",
            name=name,
            mib=mib,
            bus=f"00000000:{7 + 8 * i:02X}:00.0",
            numa=int(i >= first + count // 2),
            capability=capability,
            pcie=pcie,
            mig=mig,
        )
        for i in range(first, first + count)
    ]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def _levels(gpus: list[FakeGpu]) -> dict[tuple[str, str], int]:
    """Pairs of neighbours below one switch, the rest of a NUMA node at its host bridges."""
    levels = {}
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            near = SWITCH if i // 2 == j // 2 else NODE
            levels[one.uuid, other.uuid] = near if one.numa == other.numa else SYSTEM
    return levels


def _written(machine: FakeMachine) -> FakeMachine:
    machine.write()
    return machine


def without_library(directory: Path) -> dict[str, str]:
    """Return the environment of a process in which no libnvidia-ml.so.1 can be loaded, on any machine."""
    (directory / _NAME).write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(directory), STATE_VARIABLE: os.devnull}
