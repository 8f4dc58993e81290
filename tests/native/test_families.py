"""Every way to device memory, through every way to the driver's functions, against one limit."""

from collections.abc import Callable

import pytest

from tests.native.client import DLSYM, PER_THREAD, PROC
from tests.native.container import Container

pytestmark = pytest.mark.requirement("M4", "M5")

FAMILIES = {
    "linear": "free_linear",
    "managed": "free_linear",
    "pitch": "free_linear",
    "array": "free_array",
    "array_3d": "free_array",
    "mipmap": "free_mipmap",
    "pooled": "free_pooled",
    "from_pool": "free_pooled",
    "physical": "free_physical",
    "external": "free_external",
    "heap": "free_heap",
    "graph": "free_graph",
    "graph_node": "free_graph",
    "child_graph": "free_graph",
    "captured": "free_graph",
}


# A stream of one's own is captured, never the default one.
CASES = [
    (family, how)
    for family in FAMILIES
    for how in (DLSYM, PROC, PER_THREAD)
    if (family, how) != ("captured", PER_THREAD)
]


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(("family", "how"), CASES)
def test_counts_against_the_limit(one_gpu: Callable[..., Container], family: str, how: str) -> None:
    """What is taken is gone from what is free, too much is CUDA's out-of-memory, what is freed is there again."""
    container = one_gpu(256)
    out = container.python(f"""
cuda = Cuda({how!r})
print(cuda.info(), cuda.total())
print(cuda.{family}(128))
print(cuda.info()[0])
if {family!r} == "heap": print(cuda.heap(300))
elif {family!r} in ("graph", "graph_node", "child_graph", "captured"): print(cuda.{family}(260))
else:
    kept = cuda.last
    print(cuda.{family}(144))
    cuda.last = kept
print(cuda.{FAMILIES[family]}(), cuda.info()[0])
print(cuda.{family}(200))
""")
    first, taken, left, refused, freed, again = out.splitlines()
    assert first == "(256, 256) 256"
    assert taken == "0"
    assert 0 <= 128 - int(left) <= 4  # a pitch is rounded, a mipmap's levels are sums
    assert refused == "2"
    assert freed == "0 256"
    assert again == "0"
    assert container.gpus.gpus()[0].peak <= 256 << 20


@pytest.mark.requirement("M4")
def test_a_graph_takes_its_memory_once(one_gpu: Callable[..., Container]) -> None:
    """Launching a graph again takes nothing new; another one of the same size shares the pool."""
    out = one_gpu(256).python("""
cuda = Cuda()
print([cuda.graph(150) for _ in range(5)], cuda.info()[0])
for _ in range(5): print(cuda("cuGraphLaunch", cuda.last, None), cuda.info()[0])
""")
    assert out.splitlines() == ["[0, 0, 0, 0, 0] 106", *["0 106"] * 5]


@pytest.mark.requirement("M4")
def test_a_pool_keeps_what_it_has(one_gpu: Callable[..., Container]) -> None:
    """What a pool holds back from the GPU counts, in use or not; it is given up before memory is refused."""
    out = one_gpu(256).python("""
cuda = Cuda()
pool, threshold = c_void_p(), c_uint64(2**64 - 1)
cuda("cuDeviceGetDefaultMemPool", byref(pool), 0)
cuda("cuMemPoolSetAttribute", pool, 4, byref(threshold))
print(cuda.pooled(192), cuda.info()[0])
cuda.free_pooled()
print(cuda.info()[0], cuda.pooled(150), cuda.info()[0])
cuda("cuMemFreeAsync", cuda.last, None)
cuda.pool = None; del cuda.pool
print(cuda.from_pool(224), cuda.info()[0])
""")
    assert out.splitlines() == ["0 64", "64 0 64", "0 32"]


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(
    "way", ["linear", "managed", "pitch", "array", "mipmap", "physical", "external", "heap", "graph"]
)
def test_what_pools_keep_for_later_is_given_up_before_a_refusal(one_gpu: Callable[..., Container], way: str) -> None:
    """Memory that pools hold and nobody uses is there for every other way to memory, and for no more than it is."""
    container = one_gpu(256)
    out = container.python(f"""
cuda = Cuda()
default, threshold = c_void_p(), c_uint64(2**64 - 1)
assert cuda("cuDeviceGetDefaultMemPool", byref(default), 0) == OK
assert cuda("cuMemPoolSetAttribute", default, 4, byref(threshold)) == OK
print(cuda.pooled(192), cuda("cuMemFreeAsync", cuda.last, None), cuda.graph(32), cuda.info()[0])
print(cuda.pooled(32), cuda.{way}(220), cuda.info()[0])
""")
    first, second = out.splitlines()
    assert first == "0 0 0 32"
    assert second.startswith("0 0 ")
    assert 0 <= int(second.split()[2]) <= 4
    assert container.gpus.gpus()[0].peak <= 256 << 20


@pytest.mark.requirement("M4")
def test_contexts_and_modules_find_what_pools_keep(one_gpu: Callable[..., Container]) -> None:
    """What pools keep for later makes room for a module as well."""
    out = one_gpu(256, module_mib=100).python("""
cuda = Cuda()
print(cuda.graph(200), cuda.info()[0], cuda("cuModuleLoadData", byref(c_void_p()), b""), cuda.info()[0])
""")
    assert out == "0 56 0 156\n"


@pytest.mark.requirement("M4")
def test_a_destroyed_pool_counts_while_memory_of_it_is_in_use(one_gpu: Callable[..., Container]) -> None:
    """cuMemPoolDestroy returns at once, what is in use of the pool stays taken until it is freed."""
    container = one_gpu(256)
    out = container.python("""
cuda = Cuda()
def make():
    pool = c_void_p()
    assert cuda("cuMemPoolCreate", byref(pool), byref(PoolProps(1, 0, Location(1, 0)))) == OK
    return pool
kept = []
for _ in range(4):
    pool, pointer = make(), c_uint64()
    if cuda("cuMemAllocFromPoolAsync", byref(pointer), 192 * MIB, pool, None) == OK: kept.append(pointer)
    assert cuda("cuMemPoolDestroy", pool) == OK
print(len(kept), cuda.info()[0])
print(cuda("cuMemFreeAsync", kept.pop(), None), cuda.info()[0], cuda.linear(256))
""")
    assert out.splitlines() == ["1 64", "0 256 0"]
    assert container.gpus.gpus()[0].peak <= 256 << 20


@pytest.mark.requirement("M4")
def test_a_destroyed_pool_is_current_no_more(one_gpu: Callable[..., Container]) -> None:
    """In place of a device's current pool that is destroyed comes the default one, which cannot be destroyed."""
    out = one_gpu(256).python("""
cuda = Cuda()
pool, default, current, kept = c_void_p(), c_void_p(), c_void_p(), c_uint64(2**64 - 1)
assert cuda("cuDeviceGetDefaultMemPool", byref(default), 0) == OK
assert cuda("cuMemPoolCreate", byref(pool), byref(PoolProps(1, 0, Location(1, 0)))) == OK
assert cuda("cuMemPoolSetAttribute", pool, 4, byref(kept)) == OK
assert cuda("cuDeviceSetMemPool", 0, pool) == OK
print(cuda.pooled(64), cuda("cuMemPoolDestroy", pool), cuda("cuMemPoolDestroy", pool))
old = cuda.last
cuda("cuDeviceGetMemPool", byref(current), 0)
print(current.value == default.value, cuda.pooled(32), cuda.info()[0], cuda("cuMemPoolDestroy", default))
print(cuda("cuMemFree", old), cuda.info()[0], cuda.free_pooled(), cuda.info()[0])
""")
    assert out.splitlines() == ["0 0 1", "True 0 160 1", "0 224 0 256"]


@pytest.mark.requirement("M4")
def test_mappings_hold_physical_memory(one_gpu: Callable[..., Container]) -> None:
    """Memory of cuMemCreate counts until no handle and no mapping refers to it."""
    out = one_gpu(256).python("""
cuda = Cuda()
start, again = c_uint64(), c_uint64()
cuda("cuMemAddressReserve", byref(start), 256 * MIB, 0, 0, 0)
for i in range(2):
    cuda.physical(64)
    print(cuda("cuMemMap", start.value + i * 64 * MIB, 64 * MIB, 0, cuda.last, 0), cuda("cuMemRelease", cuda.last))
print(cuda.info()[0])
print(cuda("cuMemRetainAllocationHandle", byref(again), c_void_p(start.value)))
print(cuda("cuMemUnmap", start, 128 * MIB), cuda.info()[0])
print(cuda("cuMemRelease", again), cuda.info()[0])
""")
    assert out.splitlines() == ["0 0", "0 0", "128", "0", "0 192", "0 256"]


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("how", [DLSYM, PROC, PER_THREAD])
@pytest.mark.parametrize("flag", [0x40, 0x80])
def test_nothing_is_mapped_into_sparse_arrays(one_gpu: Callable[..., Container], how: str, flag: int) -> None:
    """Such a mapping would hold memory beyond its handle, unseen; it is refused, and that is said once."""
    container = one_gpu(256)
    code = f"""
cuda = Cuda({how!r})
array = c_void_p()
assert cuda("cuArray3DCreate", byref(array), byref(Array3D(1024, 1024, 0, 0x20, 1, {flag}))) == OK
for _ in range(3):
    result = cuda.physical(192)
    mapping = ArrayMapping(0, array, 0, (c_uint64 * 4)(), 1, 0, cuda.last, 0)
    print(result, cuda("cuMemMapArrayAsync", byref(mapping), 1, None), cuda("cuMemRelease", cuda.last))
"""
    assert container.python(code).splitlines() == ["0 801 0"] * 3
    assert container.gpus.gpus()[0].peak <= 256 << 20
    assert container.messages(code).count("sparse") == 1


@pytest.mark.requirement("M4")
def test_host_memory_and_imports_of_its_own_are_not_counted(one_gpu: Callable[..., Container]) -> None:
    """Host memory is not the GPU's; memory of another process of the container was counted there."""
    out = one_gpu(256).python("""
cuda = Cuda()
handle, opened, host, created = (ctypes.c_char * 64)(), c_uint64(), c_void_p(), c_uint64()
class Ipc(ctypes.Structure): _fields_ = (("bytes", ctypes.c_char * 64),)
print(cuda("cuIpcOpenMemHandle_v2", byref(opened), Ipc(), 1))
print(cuda("cuMemHostAlloc", byref(host), 512 * MIB, 0), cuda("cuMemFreeHost", host))
print(cuda("cuMemCreate", byref(created), 512 * MIB, byref(AllocationProp(1, 0, Location(2, 0))), 0))
print(cuda("cuMemImportFromShareableHandle", byref(created), None, 1))
print(cuda.info()[0])
""")
    assert out.splitlines() == ["0", "0 0", "0", "0", "256"]


@pytest.mark.requirement("M4")
def test_contexts_and_modules_count(one_gpu: Callable[..., Container]) -> None:
    """What the driver takes for a context and a module counts, and comes back with them."""
    container = one_gpu(256, context_mib=100, module_mib=30)
    out = container.python("""
cuda = Cuda()
print(cuda.info()[0])
module = c_void_p()
print(cuda("cuModuleLoadData", byref(module), b""), cuda.info()[0])
print(cuda.linear(126), cuda("cuModuleLoadData", byref(c_void_p()), b""))
print(cuda("cuModuleUnload", module), cuda.info()[0])
print(cuda("cuDevicePrimaryCtxRelease", 0))
cuda.use(0)
print(cuda.info()[0])
""")
    assert out.splitlines() == ["156", "0 126", "0 2", "0 30", "0", "156"]
    assert container.gpus.gpus()[0].peak <= (256 + 30) << 20  # a module is measured after it was loaded


@pytest.mark.requirement("M4")
def test_a_context_that_does_not_fit_is_refused(one_gpu: Callable[..., Container]) -> None:
    """A context larger than the limit is not made; what is only estimated is bounded by the limits file."""
    out = one_gpu(64, context_mib=100).python("""
cuda = Cuda(device=None)
print(cuda("cuInit", 0), cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0))
""")
    assert out == "0 2\n"
    estimated = one_gpu(64, context_mib=100, overhead_mib=20)
    assert estimated.python("print(Cuda().info()[0])", GPUTILE_FAKE_NVML_BLIND="1") == "44\n"


@pytest.mark.requirement("M4")
def test_a_destroyed_context_takes_its_memory_along(one_gpu: Callable[..., Container]) -> None:
    """What was not freed before a context is destroyed is counted no more."""
    out = one_gpu(256, context_mib=10).python("""
cuda = Cuda(device=None)
context = c_void_p()
print(cuda("cuInit", 0), cuda("cuCtxCreate", byref(context), 0, 0), cuda.linear(100), cuda.array(50), cuda.heap(20))
print(cuda.info()[0], cuda("cuCtxDestroy", context))
cuda.use(0)
print(cuda.info()[0])
""")
    assert out.splitlines() == ["0 0 0 0 0", "76 0", "246"]


@pytest.mark.requirement("M4")
def test_a_detached_context_takes_its_memory_along(one_gpu: Callable[..., Container]) -> None:
    """cuCtxDetach destroys a context with its last user; one that is not current it refuses."""
    out = one_gpu(256, context_mib=10).python("""
cuda = Cuda(device=None)
context, other, again = c_void_p(), c_void_p(), c_void_p()
print(cuda("cuInit", 0), cuda("cuCtxCreate", byref(context), 0, 0), cuda.linear(100), cuda.heap(20))
print(cuda("cuCtxAttach", byref(again), 0), again.value == context.value, cuda("cuCtxDetach", context), cuda.info()[0])
print(cuda("cuCtxCreate", byref(other), 0, 0), cuda("cuCtxDetach", context), cuda.info()[0])
print(cuda("cuCtxDestroy", other), cuda("cuCtxDetach", context))
cuda.use(0)
print(cuda.info()[0])
""")
    assert out.splitlines() == ["0 0 0 0", "0 True 0 126", "0 201 116", "0 0", "246"]


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("way", ["cuCtxDestroy", "cuCtxDetach"])
def test_a_context_where_another_one_was(one_gpu: Callable[..., Container], way: str) -> None:
    """A context gets the address of one that another thread destroys: what it holds meanwhile goes on counting."""
    container = one_gpu(256, context_mib=10)
    out = container.python(
        f"""
import os, threading, time
cuda = Cuda(device=None)
assert cuda("cuInit", 0) == OK
first, second = c_void_p(), c_void_p()
def destroy():
    assert cuda("cuCtxSetCurrent", first) == OK
    assert cuda({way!r}, first) == OK
assert cuda("cuCtxCreate", byref(first), 0, 0) == OK
assert cuda.linear(64) == OK
assert cuda("cuCtxPopCurrent", None) == OK
thread = threading.Thread(target=destroy)
thread.start()
destroying = os.environ["GPUTILE_FAKE_DESTROYING"]
while not os.path.exists(destroying): time.sleep(0.001)
print(cuda("cuCtxCreate", byref(second), 0, 0), second.value == first.value, cuda.linear(100), thread.is_alive())
del os.environ["GPUTILE_FAKE_DESTROYING"]
os.unlink(destroying)
thread.join()
print(cuda.info()[0], cuda("cuCtxDestroy", second))
cuda.use(0)
print(cuda.info()[0])
""",
        GPUTILE_FAKE_DESTROYING=str(container.limits.with_name("destroying")),
    )
    assert out.splitlines() == ["0 True 0 True", "146 0", "246"]


@pytest.mark.requirement("M4")
def test_a_refused_destruction_leaves_what_is_counted(one_gpu: Callable[..., Container]) -> None:
    """A primary context cannot be destroyed by its handle; what it holds goes on counting."""
    out = one_gpu(256, context_mib=10).python("""
cuda = Cuda()
context = c_void_p()
cuda("cuCtxGetCurrent", byref(context))
print(cuda.linear(100), cuda("cuCtxDestroy", context), cuda.info()[0], cuda.free_linear(), cuda.info()[0])
""")
    assert out == "0 201 146 0 246\n"


@pytest.mark.requirement("M4")
def test_a_heap_counts_once_while_it_is_resized(one_gpu: Callable[..., Container]) -> None:
    """A larger heap takes the place of the old one, a smaller one gives back, a refused one changes nothing."""
    out = one_gpu(256).python("""
cuda = Cuda()
print([(cuda.heap(mib), cuda.info()[0]) for mib in (150, 200, 140, 256, 257, 0, 100)])
""")
    assert out == "[(0, 106), (0, 56), (0, 116), (0, 0), (2, 0), (0, 256), (0, 156)]\n"
    out = one_gpu(1000).python("""
cuda = Cuda()
print([(cuda.heap(mib), cuda.info()[0]) for mib in (150, 800, 100, 0)])
""")
    assert out == "[(0, 850), (1, 850), (0, 900), (0, 1000)]\n"


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(("flags", "depth"), [(0x04, 6), (0x05, 12), (0x01, 6)])
def test_every_level_has_all_faces_and_layers(one_gpu: Callable[..., Container], flags: int, depth: int) -> None:
    """The depth of a cube map is its faces, that of a layered array its layers: neither shrinks with the level."""
    container = one_gpu(512)
    out = container.python(f"""
cuda = Cuda()
print(cuda("cuMipmappedArrayCreate", byref(c_void_p()), byref(Array3D(2048, 2048, {depth}, 0x20, 1, {flags})), 12))
print(cuda.info()[0])
""")
    whole = sum(4 * depth << 2 * level for level in range(12))
    result, left = map(int, out.split())
    assert result == 0
    assert 0 <= (512 << 20) - whole - (left << 20) <= 3 << 20
    assert container.gpus.gpus()[0].used == whole


@pytest.mark.requirement("M4")
def test_an_absurd_size_is_refused(one_gpu: Callable[..., Container]) -> None:
    """Sizes that wrap around are out of memory, as everything over the limit."""
    out = one_gpu(256).python("""
cuda = Cuda()
p, q = c_uint64(), c_size_t()
print(cuda("cuMemAlloc", byref(p), 2**64 - 1), cuda("cuMemAllocPitch", byref(p), byref(q), 2**63, 2**10, 4))
print(cuda("cuArray3DCreate", byref(c_void_p()), byref(Array3D(2**40, 2**40, 2**40, 0x20, 4, 0))))
print(cuda("cuMemAllocAsync", byref(p), 2**64 - 1, None), cuda.info())
""")
    assert out.splitlines() == ["2 2", "2", "2 (256, 256)"]
