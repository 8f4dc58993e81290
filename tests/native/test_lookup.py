"""How programs come by the driver's functions: none of the ways leads past the limit."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from tests.native.container import Container, library, program


@pytest.mark.requirement("M4")
def test_a_program_linked_with_the_driver(one_gpu: Callable[..., Container]) -> None:
    """The loader binds cuMemAlloc_v2 to the library; dlsym(RTLD_NEXT) and dlvsym go on working as they do."""
    assert one_gpu(256).run([program("linked")]).splitlines() == ["0 0 0", "0 2", "0 56 256", "1 1 1"]


def test_another_preloaded_library_finds_the_next(one_gpu: Callable[..., Container]) -> None:
    """RTLD_NEXT means the object after the caller's, although dlsym is replaced."""
    wrapper = program("next", "-shared", "-fPIC", with_driver=False)
    out = one_gpu().run(
        [sys.executable, "-c", "import os; print(os.getpid() == int(os.readlink('/proc/self')))"],
        LD_PRELOAD=f"{library()}:{wrapper}",
    )
    assert out == "True\n"


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("flags", [0, 1, 2])
@pytest.mark.parametrize("version", [3020, 7000, 11030, 12000, 12030, 13000, 13050])
def test_get_proc_address(one_gpu: Callable[..., Container], version: int, flags: int) -> None:
    """Whatever version and default stream are asked for, memory comes by the library and is counted."""
    out = one_gpu(256).python(f"""
cuda = Cuda()
for name in (b"cuGetProcAddress", b"cuGetProcAddress_v2"):
    get = getattr(cuda.library, name.decode())
    pointer, status = c_void_p(), c_int()
    more = (byref(status),) if name.endswith(b"2") else ()
    print(get(b"cuMemAlloc", byref(pointer), c_int({version}), c_uint64({flags}), *more))
    ours = ctypes.cast(cuda.library.cuMemAlloc_v2, c_void_p).value
    print(pointer.value == ours)
    print(ctypes.CFUNCTYPE(c_int)(pointer.value)(byref(c_uint64()), c_size_t(300 * MIB)))
    if {version} >= 11030: # and by a function that was itself got so
        print(get(b"cuGetProcAddress", byref(pointer), c_int({version}), c_uint64({flags}), *more))
        again = ctypes.CFUNCTYPE(c_int)(pointer.value)
        result = again(b"cuMemAlloc", byref(pointer), c_int({version}), c_uint64({flags}), byref(status))
        print(result, pointer.value == ours)
""")
    once = ["0", "True", "2"]
    if version >= 11030:
        once += ["0", "0 True"]
    assert out.splitlines() == once * 2


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("version", [14000, 2**31 - 1])
def test_newer_forms_of_functions_are_refused(one_gpu: Callable[..., Container], version: int) -> None:
    """A driver of tomorrow has a cuMemAlloc of version 14000, with parameters that nobody knows yet.

    It is not handed out, and neither is the form of today: who asks for the new one would call it with other
    parameters.
    """
    code = f"""
cuda = Cuda()
for get in (cuda.library.cuGetProcAddress, cuda.library.cuGetProcAddress_v2):
    pointer, status = c_void_p(1), c_int()
    more = (byref(status),) if get.__name__.endswith("2") else ()
    print(get(b"cuMemAlloc", byref(pointer), c_int({version}), c_uint64(0), *more), pointer.value, status.value)
    print(get(b"cuMemFree", byref(pointer), c_int({version}), c_uint64(0), *more), status.value)
    print(pointer.value == ctypes.cast(cuda.library.cuMemFree_v2, c_void_p).value)
"""
    container = one_gpu(256)
    assert container.python(code).splitlines() == ["500 None 0", "0 0", "True", "500 None 2", "0 0", "True"]
    assert container.messages(code).count("cuMemAlloc is refused") == 1


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(("driver", "shown"), [(12080, 12080), (13050, 13050), (14000, 13050)])
def test_the_driver_is_no_newer_than_what_is_known(one_gpu: Callable[..., Container], driver: int, shown: int) -> None:
    """A CUDA runtime that is newer says that the driver is too old, instead of calling what nobody looked at."""
    out = one_gpu(256, driver_version=driver).python("""
import pynvml
cuda, version, pointer = Cuda(), c_int(), c_void_p()
cuda.library.cuDriverGetVersion(byref(version))
print(version.value)
cuda.library.cuGetProcAddress(b"cuDriverGetVersion", byref(pointer), c_int(12000), c_uint64(0))
ctypes.CFUNCTYPE(c_int)(pointer.value)(byref(version))
print(version.value)
pynvml.nvmlInit()
print(pynvml.nvmlSystemGetCudaDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2())
print(cuda.library.cuDriverGetVersion(None))
""")
    assert out.splitlines() == [str(shown), str(shown), f"{shown} {shown}", "1"]


@pytest.mark.requirement("M4")
def test_a_driver_that_is_closed_and_opened_again(one_gpu: Callable[..., Container]) -> None:
    """A program that closes libcuda and opens it again calls functions that are still there."""
    out = one_gpu(256).python("""
import mmap, os
libc = ctypes.CDLL(None)
libc.dlopen.restype, libc.dlclose.argtypes = c_void_p, [c_void_p]
opened = libc.dlopen(b"libcuda.so.1", os.RTLD_NOW)
handle = ctypes.CDLL("libcuda.so.1", handle=opened)
assert handle.cuInit(0) == OK
version = c_int()
handle.cuDriverGetVersion(byref(version))
assert libc.dlclose(opened) == 0
filled = [mmap.mmap(-1, 1 << 12) for _ in range(4096)]  # where the driver was, too
cuda = Cuda()
print(cuda.linear(100), cuda.linear(200), cuda.info())
""")
    assert out.splitlines() == ["0 2 (156, 256)"]


@pytest.mark.requirement("M4")
def test_per_thread_streams(one_gpu: Callable[..., Container]) -> None:
    """With the flag for per-thread default streams, the _ptsz forms are answered, by the library."""
    out = one_gpu(256).python("""
cuda = Cuda()
pointer = c_void_p()
for symbol in ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuLaunchKernel",
               "cuLaunchKernel_ptsz"):
    flags = 2 if symbol.endswith("_ptsz") else 0
    cuda.library.cuGetProcAddress(symbol.removesuffix("_ptsz").encode(), byref(pointer), c_int(12000), c_uint64(flags))
    print(pointer.value == ctypes.cast(getattr(cuda.library, symbol), c_void_p).value)
""")
    assert out.split() == ["True"] * 6


@pytest.mark.requirement("M4")
def test_unknown_functions_are_refused(one_gpu: Callable[..., Container]) -> None:
    """A function that this library does not know may allocate: it is not handed out, and that is said."""
    code = """
cuda = Cuda()
try:
    cuda.library.cuMemAllocQuantum
except AttributeError as error:
    print(error)
pointer, status = c_void_p(1), c_int()
for _ in range(3):
    name = b"cuMemAllocQuantum"
    result = cuda.library.cuGetProcAddress_v2(name, byref(pointer), c_int(13000), c_uint64(0), byref(status))
    print(result, pointer.value, status.value)
"""
    container = one_gpu(256)
    lines = container.python(code).splitlines()
    assert "undefined symbol" in lines[0]
    assert lines[1:] == ["500 None 1"] * 3
    assert container.messages(code).count("cuMemAllocQuantum is refused") == 1


@pytest.mark.requirement("M4")
def test_what_is_linked_with_unknown_functions_gets_no_gpu(one_gpu: Callable[..., Container]) -> None:
    """What the loader bound to the driver cannot be refused one by one, so there is no context at all."""
    container = one_gpu(256)
    process = container.start([program("newer")])
    assert process.communicate()[0] == "100 100 -1\n"
    plugin = program("newer", "-shared", "-fPIC")
    code = f"""
cuda = Cuda(device=None)
print(cuda("cuInit", 0))
ctypes.CDLL({str(plugin)!r})
print(cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0))
"""
    assert container.python(code) == "0\n100\n"
    assert "linked with cuMemAllocQuantum" in container.messages(code)


@pytest.mark.requirement("M4")
def test_libraries_whose_names_lie_elsewhere_are_read_to_their_last_import(one_gpu: Callable[..., Container]) -> None:
    """Tools that repair wheels (patchelf) put a library's names behind all else, far from its symbols.

    A reader that takes all between them for symbols ends the process: numpy alone was enough, and so all of PyTorch.
    """
    blas = next(Path(numpy.__file__).parent.with_name("numpy.libs").glob("*openblas*"))
    sections = subprocess.run(["readelf", "-SW", blas], capture_output=True, text=True, check=True).stdout
    symbols, names = (re.search(rf"\.{name} +\S+ +(\S+) \S+ (\S+)", sections) for name in ("dynsym", "dynstr"))
    assert symbols
    assert names
    assert int(names[1], 16) > int(symbols[1], 16) + int(symbols[2], 16) + 4096, "it is no such library any more"
    assert one_gpu(256).python("import numpy\nprint(Cuda(device=None)('cuInit', 0))") == "0\n"


@pytest.mark.requirement("M4")
def test_the_functions_of_cuda_2(one_gpu: Callable[..., Container]) -> None:
    """cuMemAlloc without suffix has 32-bit pointers; it is refused, while what only asks is answered."""
    out = one_gpu(256).python("""
library = ctypes.CDLL(None)
cuda = Cuda()
print(library.cuMemAlloc(byref(c_uint()), c_uint(1 << 20)))
free, total = c_uint(), c_uint()
print(library.cuMemGetInfo(byref(free), byref(total)), free.value >> 20, total.value >> 20)
print(library.cuDeviceTotalMem(byref(total), 0), total.value >> 20)
""")
    assert out.splitlines() == ["801", "0 256 256", "0 256"]


def test_without_a_driver(one_gpu: Callable[..., Container], tmp_path: object) -> None:
    """The library is loaded into every program of a container: those without CUDA do not notice it."""
    container = one_gpu(256)
    out = container.run(["/bin/sh", "-c", "echo $((6 * 7))"])
    assert out == "42\n"
    environment = {"LD_LIBRARY_PATH": os.devnull}
    out = container.run(
        [sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).cuInit(0), hasattr(ctypes.CDLL(None), 'cuNo'))"],
        **environment,
    )
    assert out == "500 False\n"


@pytest.mark.requirement("M4")
def test_private_tables_are_passed_on_and_unknown_ones_are_named(one_gpu: Callable[..., Container]) -> None:
    """The CUDA runtime needs its tables; one that nobody knows is named once, however it was come by."""
    said = one_gpu().messages("""
cuda, table, pointer = Cuda(), c_void_p(), c_void_p()
assert cuda.library.cuGetProcAddress_v2(b"cuGetExportTable", byref(pointer), c_int(12000), c_uint64(0), None) == OK
ways = (cuda.library.cuGetExportTable, ctypes.CFUNCTYPE(c_int)(pointer.value))
runtime = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
for get in ways * 2:
    for uuid in (runtime, bytes(range(16)), bytes(range(16, 32))):
        assert get(byref(table), uuid) == OK
        assert table.value
        table.value = None
""")
    named = [line for line in said.splitlines() if "private table" in line]
    assert len(named) == 2
    assert "00010203-0405-0607-0809-0a0b0c0d0e0f" in named[0]
    assert "10111213-1415-1617-1819-1a1b1c1d1e1f" in named[1]
