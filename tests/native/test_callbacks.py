"""Profilers are called back in the midst of a driver function, and call the driver themselves."""

from collections.abc import Callable

import pytest

from tests.native.container import Container

CALLS = {
    "cuMemAllocAsync": "cuda.pooled(32)",
    "cuMemPoolCreate": "cuda('cuMemPoolCreate', byref(c_void_p()), byref(PoolProps(1, 0, Location(1, 0))))",
    "cuMemPoolTrimTo": "cuda('cuMemPoolTrimTo', default, 0)",
    "cuMemPoolDestroy": "cuda('cuMemPoolDestroy', made)",
    "cuDevicePrimaryCtxRetain": "cuda('cuDevicePrimaryCtxRetain', byref(c_void_p()), 0)",
    "cuCtxSetLimit": "cuda.heap(16)",
}


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("call", CALLS)
def test_a_callback_may_use_the_driver(one_gpu: Callable[..., Container], call: str) -> None:
    """What a callback asks and allocates is answered and counted, whatever function it is called back from."""
    out = one_gpu(512).python(f"""
cuda, default, made = Cuda(), c_void_p(), c_void_p()
assert cuda("cuDeviceGetDefaultMemPool", byref(default), 0) == OK
assert cuda("cuMemPoolCreate", byref(made), byref(PoolProps(1, 0, Location(1, 0)))) == OK
inner = []

@ctypes.CFUNCTYPE(None, c_char_p)
def called_back(name):
    if name != b"{call}" or inner:
        return
    inner.append("begun")
    results = [cuda.info()[1], cuda("cuCtxSynchronize"), cuda.pooled(64), cuda.last is not None]
    pool = c_void_p()
    results += [cuda("cuMemPoolCreate", byref(pool), byref(PoolProps(1, 0, Location(1, 0))))]
    results += [cuda("cuMemPoolDestroy", pool)]
    results += [cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0), cuda("cuDevicePrimaryCtxRelease", 0)]
    results += [cuda.linear(1024), cuda.pooled(1024)]
    inner[:] = results

cuda.library.fakeSubscribe(called_back)
print({CALLS[call]})
cuda.library.fakeSubscribe(None)
print(inner)
cuda("cuCtxSynchronize")
print(cuda.info()[0] >= 512 - 64 - 32 - 16 - 32, cuda.linear(300), cuda.linear(300))
""")
    assert out.splitlines() == ["0", "[512, 0, 0, True, 0, 0, 0, 0, 2, 2]", "True 0 2"]
