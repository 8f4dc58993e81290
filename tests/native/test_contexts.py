"""Contexts that come and go while the library waits for their work."""

from collections.abc import Callable
from pathlib import Path

import pytest
from native.layouts import USAGE

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.isolation.library import GpuLimit, encode_limits
from gputile.node.isolation.usage_file_reader import read_usage
from tests.integration.arbiter.process import ArbiterProcess
from tests.native.container import Container

CODE = """
import threading
cuda = Cuda(device=None)
assert cuda("cuInit", 0) == OK
short = c_uint64(300_000)
kernel = (c_void_p * 1)(ctypes.cast(byref(short), c_void_p))
def launch(times):
    for _ in range(times):
        assert cuda("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, kernel, None) == OK
def own(rounds):
    for _ in range(rounds):
        contexts = []
        for _ in range(3):
            contexts.append(c_void_p())
            assert cuda.library.cuCtxCreate_v2(byref(contexts[-1]), 0, 0) == OK
            launch(4)
        for context in reversed(contexts):
            assert cuda("cuCtxDestroy", context) == OK
def shared(rounds):
    for _ in range(rounds):
        context = c_void_p()
        assert cuda("cuDevicePrimaryCtxRetain", byref(context), 0) == OK
        assert cuda("cuCtxSetCurrent", context) == OK
        launch(4)
        assert cuda("cuCtxSetCurrent", None) == OK
        assert cuda("cuDevicePrimaryCtxRelease", 0) == OK
threads = [threading.Thread(target=own, args=(20,)) for _ in range(4)]
threads.append(threading.Thread(target=shared, args=(40,)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.mark.requirement("M5")
def test_a_destroyed_context_is_never_used(one_gpu: Callable[..., Container], tmp_path: Path) -> None:
    """Nobody may use a context while it is destroyed, nor after; the fake aborts. More of them than are known."""
    container = one_gpu(256)
    with ArbiterProcess(tmp_path) as arbiter:
        gpu = container.gpus.uuids[0]
        (path,) = arbiter.assign({"allocation": {gpu: Share(ceiling=WHOLE // 2, guarantee=WHOLE // 2)}})
        container.limits.write_bytes(encode_limits([GpuLimit(gpu, 256)], turn=str(path)))
        assert container.python(CODE) == "done\n"


@pytest.mark.requirement("M4")
def test_a_context_is_charged_what_it_took_whatever_others_do(
    one_gpu: Callable[..., Container], tmp_path: Path
) -> None:
    """Another container on the GPU takes memory and gives it back meanwhile; NVIDIA counts each process for itself."""
    container = one_gpu(256, context_mib=64)
    other = Container(tmp_path / "other", container.gpus, {0: 700})
    try:
        other.hold("cuda = Cuda()\nprint(1, flush=True)\nwhile True: cuda.linear(500), cuda('cuMemFree', cuda.last)")
        for _ in range(12):
            assert container.python("print(Cuda().info())") == "(192, 256)\n"
    finally:
        other.close()


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("before", [0, 100])
def test_where_nvml_lists_no_processes_free_memory_is_compared(one_gpu: Callable[..., Container], before: int) -> None:
    """What the container's own processes take and give back meanwhile is no part of the context."""
    container = one_gpu(256, context_mib=64)
    sibling = container.hold(
        f"cuda = Cuda()\ncuda.linear({before})\nprint(1, flush=True)\nimport time; time.sleep(600)"
    )
    code = "print(Cuda().info())"
    assert container.python(code, GPUTILE_FAKE_NVML_BLIND="1") == f"({256 - 128 - before}, 256)\n"
    sibling.end()
    assert container.python(code, GPUTILE_FAKE_NVML_BLIND="1") == "(192, 256)\n"


@pytest.mark.requirement("M4")
def test_contexts_that_threads_make_at_once_are_charged_one_by_one(one_gpu: Callable[..., Container]) -> None:
    """Of eight, and of one that is given back, none is charged for another, whatever memory is taken meanwhile."""
    code = """
from threading import Thread
cuda, contexts = Cuda(), [c_void_p() for _ in range(8)]
def make(context):
    assert cuda.library.cuCtxCreate_v2(byref(context), 0, 0) == OK
def take():
    cuda.use(0)
    for _ in range(10):
        pointer = c_uint64()
        assert cuda("cuMemAlloc", byref(pointer), 2 << 20) == OK
threads = [Thread(target=make, args=(context,)) for context in contexts] + [Thread(target=take)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
cuda.use(0)
before = cuda.info()[0]
assert cuda("cuCtxDestroy", contexts[0]) == OK
print(before, cuda.info()[0] - before)
"""
    free, given_back = map(int, one_gpu(900, context_mib=64).python(code).split())
    # Memory that is reserved and not taken yet when a measurement begins is charged with the context, too.
    assert 900 - 9 * 64 - 20 - 8 * 2 <= free <= 900 - 9 * 64 - 20
    assert 64 <= given_back <= 66


TRIES = """
cuda, context = Cuda(device=None), c_void_p()
assert cuda("cuInit", 0) == OK
for _ in range(3):
    print(cuda.library.cuCtxCreate_v2(byref(context), 0, 0), cuda("cuDevicePrimaryCtxRetain", byref(context), 0))
"""


@pytest.mark.requirement("M4")
def test_a_context_that_has_no_room_is_not_made_even_for_a_moment(one_gpu: Callable[..., Container]) -> None:
    """The container's first one says how much they take; a pool's unused memory gives way."""
    container = one_gpu(256, context_mib=64)
    filled = container.hold("cuda = Cuda()\ncuda.linear(192)\nprint(1, flush=True)\nimport time; time.sleep(600)")
    assert container.python(TRIES).split() == ["2"] * 6  # CUDA_ERROR_OUT_OF_MEMORY
    assert container.gpus.gpus()[0].peak == 256 << 20
    filled.end()
    assert container.python("print(Cuda().info())") == "(192, 256)\n"
    assert container.gpus.gpus()[0].peak == 256 << 20


@pytest.mark.requirement("M4")
def test_a_context_that_the_driver_refuses_takes_nothing(one_gpu: Callable[..., Container], tmp_path: Path) -> None:
    container = one_gpu(256, context_mib=64)
    assert container.python("print(Cuda().info())") == "(192, 256)\n"
    other = Container(tmp_path / "other", container.gpus, {0: 1024})
    try:
        other.hold("cuda = Cuda()\ncuda.linear(960)\nprint(1, flush=True)\nimport time; time.sleep(600)")
        assert container.python(TRIES).split() == ["2"] * 6
        counted = read_usage(container.usage, 1)
        assert counted is not None
        assert counted[0].used == 0
    finally:
        other.close()


@pytest.mark.requirement("M4")
def test_a_context_takes_what_it_takes_whatever_the_container_says_of_others(one_gpu: Callable[..., Container]) -> None:
    """The file is the container's own: nonsense in it keeps it from nothing but contexts of its own."""
    container = one_gpu(256, context_mib=64)
    assert container.python("print(Cuda().info())") == "(192, 256)\n"
    for said, shown in ((1, "(192, 256)\n"), (200 << 20, "(192, 256)\n")):
        with container.usage.open("r+b") as file:
            file.seek(USAGE.offsets["context"])
            file.write(said.to_bytes(8, "little"))
        assert container.python("print(Cuda().info())") == shown
    with container.usage.open("r+b") as file:
        file.seek(USAGE.offsets["context"])
        file.write((1 << 63).to_bytes(8, "little"))
    assert container.python(TRIES).split() == ["2"] * 6
