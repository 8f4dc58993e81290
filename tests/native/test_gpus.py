"""Several GPUs with limits of their own, in whatever order a process sees them, and NVML's view of them."""

from pathlib import Path

import pytest

from tests.fakes.cuda import FakeGpus
from tests.native.container import Container


@pytest.fixture
def two_of_three(tmp_path: Path) -> Container:
    """300 MiB of the first GPU and 100 of the third; the second is somebody else's."""
    return Container(tmp_path / "allocation", FakeGpus(tmp_path, [1024, 512, 2048]), {0: 300, 2: 100})


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("visible", ["0,2", "2,0", "by uuid"])
def test_each_gpu_has_its_limit(two_of_three: Container, visible: str) -> None:
    """Limits belong to UUIDs, not to the numbers that CUDA_VISIBLE_DEVICES gives to GPUs."""
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


@pytest.mark.requirement("M4", "B2")
def test_a_gpu_that_was_not_given(two_of_three: Container) -> None:
    """A container that sees more GPUs than it was given gets no context on them."""
    code = """
cuda = Cuda(device=None)
print(cuda("cuInit", 0), cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 1))
print(cuda("cuCtxCreate", byref(c_void_p()), 0, 1), cuda("cuDeviceTotalMem", byref(c_size_t()), 1))
print(cuda("cuMemCreate", byref(c_uint64()), 2 * MIB, byref(AllocationProp(1, 0, Location(1, 1))), 0))
"""
    assert two_of_three.python(code).splitlines() == ["0 100", "100 101", "101"]
    assert two_of_three.gpus.uuids[1] in two_of_three.messages(code)


@pytest.mark.requirement("M4")
def test_nvml_shows_the_limit(two_of_three: Container) -> None:
    """What nvidia-smi and monitors read is the container's part; a GPU that is not its own is as it is."""
    out = two_of_three.python("""
import pynvml
cuda = Cuda()
cuda.linear(90)
pynvml.nvmlInit()
for i in range(3):
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i))
    newer = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i), version=pynvml.nvmlMemory_v2)
    print([x >> 20 for x in (memory.total, memory.free, memory.used, newer.total, newer.free, newer.used)])
""")
    assert out.splitlines() == [
        "[300, 210, 90, 300, 210, 90]",
        "[512, 512, 0, 512, 512, 0]",
        "[100, 100, 0, 100, 100, 0]",
    ]


@pytest.mark.requirement("M4")
def test_free_is_never_more_than_the_gpu_has(tmp_path: Path) -> None:
    """When others have the GPU's memory, what is shown as free is what can still be had."""
    gpus = FakeGpus(tmp_path, [256])
    first = Container(tmp_path / "a", gpus, {0: 200})
    second = Container(tmp_path / "b", gpus, {0: 200})
    process = first.begin("cuda = Cuda()\nprint(cuda.linear(200), flush=True)\ninput()")
    assert process.line() == "0"
    assert second.python("cuda = Cuda(); print(cuda.info(), cuda.linear(100), cuda.linear(50))") == "(56, 200) 2 0\n"
    process.end()


@pytest.fixture
def two_gpus(tmp_path: Path) -> Container:
    """512 MiB of a GPU and 128 of another."""
    return Container(tmp_path / "allocation", FakeGpus(tmp_path, [1024, 1024]), {0: 512, 1: 128})


@pytest.mark.requirement("M4")
def test_a_pool_counts_on_its_own_gpu(two_gpus: Container) -> None:
    """A pool's GPU is charged whatever context is current, be it a default pool, a current one or one's own."""
    out = two_gpus.python("""
cuda = Cuda()
default, made = c_void_p(), c_void_p()
assert cuda("cuDeviceGetDefaultMemPool", byref(default), 1) == OK
assert cuda("cuMemPoolCreate", byref(made), byref(PoolProps(1, 0, Location(1, 1)))) == OK
for pool in (default, made):
    taken = []
    while cuda("cuMemAllocFromPoolAsync", byref(pointer := c_uint64()), 32 * MIB, pool, None) == OK:
        taken.append(pointer)
    print(len(taken), cuda.info()[0])
    for pointer in taken: cuda("cuMemFreeAsync", pointer, None)
    cuda("cuMemPoolTrimTo", pool, 0)
cuda.use(1)
print(cuda.info()[0])
""")
    assert out.splitlines() == ["4 512", "4 512", "128"]
    assert two_gpus.gpus.gpus()[1].peak == 128 << 20


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("driver", [12000, 13000])
def test_an_allocation_on_a_stream_counts_on_the_stream_s_gpu(tmp_path: Path, driver: int) -> None:
    """cuMemAllocAsync takes the pool that is current on the device of the stream."""
    gpus = FakeGpus(tmp_path, [1024, 1024], driver_version=driver)
    out = Container(tmp_path / "allocation", gpus, {0: 512, 1: 128}).python("""
cuda = Cuda(device=1)
stream, pointer = cuda.stream(), c_uint64()
cuda.use(0)
print(cuda("cuMemAllocAsync", byref(pointer), 256 * MIB, stream))
print(cuda("cuMemAllocAsync", byref(pointer), 96 * MIB, stream), cuda.info()[0])
cuda.use(1)
print(cuda.info()[0])
""")
    assert out.splitlines() == ["2", "0 512", "32"]
    assert [gpu.peak >> 20 for gpu in gpus.gpus()] == [0, 96]


@pytest.mark.requirement("M4")
def test_a_graph_counts_on_the_gpus_of_its_nodes(two_gpus: Container) -> None:
    """A graph may allocate on several GPUs; what does not fit on one of them is refused as a whole."""
    out = two_gpus.python("""
cuda = Cuda()
def launch(*mib):
    graph, node = c_void_p(), c_void_p()
    assert cuda("cuGraphCreate", byref(graph), 0) == OK
    for device, size in enumerate(mib):
        asked = AllocNode(PoolProps(1, 0, Location(1, device)), None, 0, size * MIB, 0)
        assert cuda("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(asked)) == OK
        assert cuda("cuGraphAddMemFreeNode", byref(node), graph, None, 0, c_uint64(asked.pointer)) == OK
    return cuda.launched(graph)
def free():
    left = []
    for device in (1, 0):
        cuda.use(device)
        left.insert(0, cuda.info()[0])
    return left
print(launch(64, 130), free())
print(launch(64, 100), free())
print(cuda("cuGraphExecDestroy", cuda.last), cuda("cuDeviceGraphMemTrim", 1), free())
""")
    assert out.splitlines() == ["2 [512, 128]", "0 [448, 28]", "0 0 [448, 128]"]
    assert [gpu.peak >> 20 for gpu in two_gpus.gpus.gpus()] == [64, 100]


@pytest.mark.requirement("M4")
def test_a_captured_allocation_counts_on_its_pool_s_gpu(two_gpus: Container) -> None:
    """A captured allocation becomes a node with the place of the pool, which is not that of the context."""
    out = two_gpus.python("""
cuda = Cuda()
pool, graph, node = c_void_p(), c_void_p(), c_void_p()
assert cuda("cuDeviceGetDefaultMemPool", byref(pool), 1) == OK
def launch(mib):
    stream, pointer = cuda.stream(), c_uint64()
    assert cuda("cuStreamBeginCapture", stream, 0) == OK
    assert cuda("cuMemAllocFromPoolAsync", byref(pointer), mib * MIB, pool, stream) == OK
    assert cuda("cuStreamEndCapture", stream, byref(graph)) == OK
    assert cuda("cuGraphAddMemFreeNode", byref(node), graph, None, 0, pointer) == OK
    return cuda.launched(graph)
print(launch(100), launch(130), cuda.info()[0])
""")
    assert out.splitlines() == ["0 2 512"]
    assert [gpu.peak >> 20 for gpu in two_gpus.gpus.gpus()] == [0, 100]


@pytest.mark.requirement("M4")
def test_a_pool_of_no_gpu_is_refused(two_gpus: Container) -> None:
    """Memory of a pool that is on no GPU that the driver tells is refused, and that is said once."""
    code = """
cuda = Cuda()
strange = (ctypes.c_char * 256)()
print([cuda("cuMemAllocFromPoolAsync", byref(c_uint64()), MIB, byref(strange), None) for _ in range(2)])
"""
    assert two_gpus.python(code) == "[801, 801]\n"
    assert two_gpus.messages(code).count("does not report the pool's GPU") == 1
