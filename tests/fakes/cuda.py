"""GPUs for the tests: the simulated driver of this checkout's sources, built once for each state of them."""

import contextlib
import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hatch_build import ROOT, SOURCES, build_simulation, simulation_sources

from gputile.api.quantity import MIB
from gputile.node.isolation.simulated_gpus import (
    DRIVER,
    STATE_VARIABLE,
    SimulatedDriver,
    SimulatedGpu,
    SimulatedGpus,
    SimulatedProcess,
)

__all__ = ["MIB", "NAME", "STATE_VARIABLE", "FakeGpus", "SimulatedGpu", "SimulatedProcess", "library"]

NAME = DRIVER
_CACHE = ROOT / ".cache" / "fakes"


@cache
def library() -> Path:
    """Return the fake driver; beside it lies a libnvidia-ml.so.1 that tells the same GPUs' memory."""
    content = b"".join(path.read_bytes() for path in [*simulation_sources(), SOURCES / "base" / "cuda_types.h"])
    directory = _CACHE / f"cuda-{hashlib.sha256(content).hexdigest()[:16]}"
    if not directory.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            built = Path(scratch, "built")
            build_simulation(built, ["-Werror"])
            with contextlib.suppress(OSError):  # another process was first
                built.rename(directory)
    return directory / DRIVER


class FakeGpus(SimulatedGpus):
    """A machine with GPUs of ``mib`` MiB; its file is made in ``directory``."""

    def __init__(
        self,
        directory: Path,
        mib: Sequence[int] = (16384,),
        context_mib: int = 0,
        module_mib: int = 0,
        copy_bytes_per_us: int = 0,
        driver_version: int = 13000,
    ) -> None:
        driver = SimulatedDriver(context_mib, module_mib, copy_bytes_per_us, driver_version)
        super().__init__(directory, library().parent, mib, driver)
