"""Several cards with limits of their own, in whatever order a process sees them, and NVML's view of them."""

import sys
from pathlib import Path

import pytest

from tests.fakes.cuda import FakeGpus
from tests.native.container import Container


@pytest.fixture
def two_of_three(tmp_path: Path) -> Container:
    """300 MiB of the first card and 100 of the third; the second is somebody else's."""
    return Container(tmp_path / "allocation", FakeGpus(tmp_path, [1024, 512, 2048]), {0: 300, 2: 100})


@pytest.mark.parametrize("visible", ["0,2", "2,0", "by uuid"])
def test_each_card_has_its_limit(two_of_three: Container, visible: str) -> None:
    """M4: limits belong to UUIDs, not to the numbers that CUDA_VISIBLE_DEVICES gives to cards."""
    uuids = two_of_three.gpus.uuids
    order = f"{uuids[2]},{uuids[0]}" if visible == "by uuid" else visible
    out = two_of_three.python(
        """
cuda = Cuda()
for device in range(2):
    cuda.use(device)
    print(cuda.info()[1], cuda.total(device), cuda.linear(90), cuda.linear(90), cuda.linear(90), cuda.linear(90))
""",
        CUDA_VISIBLE_DEVICES=order,
    )
    big, small = "300 300 0 0 0 2", "100 100 0 2 2 2"
    assert out.splitlines() == ([big, small] if visible == "0,2" else [small, big])


def test_a_card_that_was_not_given(two_of_three: Container) -> None:
    """M4, B2: a container that sees more cards than it was given gets no context on them."""
    code = """
cuda = Cuda(device=None)
print(cuda("cuInit", 0), cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 1))
print(cuda("cuCtxCreate", byref(c_void_p()), 0, 1), cuda("cuDeviceTotalMem", byref(c_size_t()), 1))
print(cuda("cuMemCreate", byref(c_uint64()), 2 * MIB, byref(AllocationProp(1, 0, Location(1, 1))), 0))
"""
    assert two_of_three.python(code).splitlines() == ["0 100", "100 101", "101"]
    assert two_of_three.gpus.uuids[1] in two_of_three.messages(code)


def test_nvml_shows_the_limit(two_of_three: Container) -> None:
    """M4: what nvidia-smi and monitors read is the container's part; a card that is not its own is as it is."""
    out = two_of_three.run(
        [
            sys.executable,
            "-c",
            """
import pynvml
from tests.native.client import *
cuda = Cuda()
cuda.linear(90)
pynvml.nvmlInit()
for i in range(3):
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i))
    newer = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i), version=pynvml.nvmlMemory_v2)
    print([x >> 20 for x in (memory.total, memory.free, memory.used, newer.total, newer.free, newer.used)])
""",
        ]
    )
    assert out.splitlines() == [
        "[300, 210, 90, 300, 210, 90]",
        "[512, 512, 0, 512, 512, 0]",
        "[100, 100, 0, 100, 100, 0]",
    ]


def test_free_is_never_more_than_the_card_has(tmp_path: Path) -> None:
    """M4: when others have the card's memory, what is shown as free is what can still be had."""
    gpus = FakeGpus(tmp_path, [256])
    first = Container(tmp_path / "a", gpus, {0: 200})
    second = Container(tmp_path / "b", gpus, {0: 200})
    process = first.start(
        [
            sys.executable,
            "-c",
            "from tests.native.client import *\ncuda = Cuda()\nprint(cuda.linear(200), flush=True)\ninput()",
        ]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    assert second.python("cuda = Cuda(); print(cuda.info(), cuda.linear(100), cuda.linear(50))") == "(56, 200) 2 0\n"
    process.kill()
    process.communicate()
