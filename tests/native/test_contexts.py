"""Contexts that come and go while the library waits for their work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.node.arbiter.assignment_message import GpuClaim
from gputile.node.arbiter.shares import WHOLE
from gputile.node.isolation.limits_format import GpuLimit, encode_limits
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
        (path,) = arbiter.assign({"allocation": [GpuClaim(gpu, ceiling=WHOLE // 2, guarantee=WHOLE // 2)]})
        container.limits.write_bytes(encode_limits([GpuLimit(gpu, 256)], turn=str(path)))
        assert container.python(CODE) == "done\n"
