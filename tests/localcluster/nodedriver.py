"""The driver of a node with GPUs: fakes of NVIDIA's libraries that show one machine, for its container runtime."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.fakes import cuda, nvml
from tests.localcluster.nvidiaruntime import DRIVER_STATE


def write_driver(directory: Path, machine: Callable[[Path], nvml.FakeMachine]) -> tuple[Path, nvml.FakeMachine]:
    """Make a machine's GPUs in ``directory``; return the file for ``nvidiaruntime``, and the machine."""
    state = directory / "driver"
    state.mkdir()
    made = machine(state / "machine")
    gpus = cuda.FakeGpus(state, [gpu.mib for gpu in made.gpus])
    made.rename(gpus.uuids)
    gpus.path.chmod(0o666)  # a container of any user has the driver's devices
    description = {
        "libraries": {"utility": [str(nvml.library())], "compute": [str(cuda.library())]},
        "state": str(state),
        "environment": {
            nvml.STATE_VARIABLE: f"{DRIVER_STATE}/machine",
            cuda.STATE_VARIABLE: f"{DRIVER_STATE}/{gpus.path.name}",
        },
    }
    path = directory / "driver.json"
    path.write_text(json.dumps(description))
    return path, made
