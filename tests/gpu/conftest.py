"""Containers under the library on the machine's first GPU."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from gputile.node.arbiter.accounts import Share
from gputile.node.nvml.errors import problem_of
from gputile.node.nvml.nvml_probe import NvmlSession
from tests.gpu.neighbour import RealGpu
from tests.integration.arbiter.process import ArbiterProcess
from tests.native.container import IsolatedContainer


@pytest.fixture
def nvml() -> Iterator[NvmlSession]:
    """The driver's own account of the machine, with its GPUs listed; without a GPU the test fails."""
    try:
        probe = NvmlSession()
        listed = probe.inventory().gpus
    except pynvml.NVMLError as error:
        pytest.fail(f"these tests need an NVIDIA GPU: {problem_of(error.value).message}")
    assert listed, "these tests need an NVIDIA GPU"
    yield probe
    probe.close()


@pytest.fixture
def gpu(nvml: NvmlSession) -> RealGpu:
    return RealGpu(nvml.inventory().gpus[0].uuid)


@pytest.fixture
def on_gpu(
    gpu: RealGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], IsolatedContainer]]:
    """A container with so many MiB of the GPU."""
    assert not os.environ.get("CUDA_VISIBLE_DEVICES"), "a program of the test is to see the first GPU as its first"
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    made: list[IsolatedContainer] = []

    def make(mib: int) -> IsolatedContainer:
        made.append(IsolatedContainer(tmp_path / f"allocation-{len(made)}", gpu, {0: mib}))
        return made[-1]

    yield make
    for container in made:
        container.close()


@pytest.fixture
def beside_a_neighbour(gpu: RealGpu) -> Iterator[Callable[[int], IsolatedContainer]]:
    """A container with so many MiB that gets half of the GPU's time, since another one keeps the GPU busy."""
    made: list[IsolatedContainer] = []
    directory = Path(tempfile.mkdtemp(prefix="g-"))  # short, as the names of sockets have to be
    with ArbiterProcess(directory) as arbiter:
        shares = {gpu.uuids[0]: Share()}
        program, neighbour = arbiter.assign({"program": shares, "neighbour": shares})

        def make(mib: int) -> IsolatedContainer:
            made.append(IsolatedContainer(neighbour.parent, gpu, {0: 2048}, turn=str(neighbour)))
            busy = made[-1].start([sys.executable, "-m", "gputile.node.isolation.probe", "time", "3600"])
            assert busy.line() == "ready"
            busy.go_on()
            made.append(IsolatedContainer(program.parent, gpu, {0: mib}, turn=str(program)))
            return made[-1]

        yield make
        for container in made:
            container.close()
    shutil.rmtree(directory)
