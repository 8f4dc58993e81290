"""Takes all the memory it can get in one way, as a CUDA program.

``python -m gputile.node.isolation.probe WAY MIB``

It runs in a process of its own, under the library, on the first GPU that it sees. Once it has a context it prints a
line and waits for one, so that several can begin at once. Then it asks for MIB in pieces and prints how many it got.
It uses the driver API as cuda.h describes it, so it runs on a real driver and on the simulated one.
"""

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Final

PIECE_MIB: Final = 32  # what a real driver takes at least for a pool, and for each allocation node of a graph
_PIECE: Final = PIECE_MIB << 20
_ON_DEVICE: Final = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_FLOAT: Final = 0x20  # CU_AD_FORMAT_FLOAT


class _AllocationProp(ctypes.Structure):
    _fields_ = (("type", c_int), ("handles", c_int), ("place", c_int), ("device", c_int), ("rest", c_uint64 * 2))


class _ArrayDescriptor(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class _AllocNode(ctypes.Structure):
    _fields_ = (
        ("type", c_int), ("handles", c_int), ("place", c_int), ("device", c_int), ("pool", c_uint64 * 9),
        ("access", c_void_p), ("count", c_size_t), ("bytes", c_size_t), ("pointer", c_uint64),
    )  # fmt: skip


def _linear(cuda: ctypes.CDLL) -> int:
    return int(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(_PIECE)))


def _managed(cuda: ctypes.CDLL) -> int:
    return int(cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(_PIECE), 1))


def _pooled(cuda: ctypes.CDLL) -> int:
    return int(cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(_PIECE), None))


def _physical(cuda: ctypes.CDLL) -> int:
    wanted = _AllocationProp(1, 0, _ON_DEVICE, 0)
    return int(cuda.cuMemCreate(byref(c_uint64()), c_size_t(_PIECE), byref(wanted), c_uint64(0)))


def _array(cuda: ctypes.CDLL) -> int:
    wanted = _ArrayDescriptor(1024, _PIECE // (1024 * 16), _FLOAT, 4)
    return int(cuda.cuArrayCreate_v2(byref(c_void_p()), byref(wanted)))


def _graph(cuda: ctypes.CDLL) -> int:
    graph, node, run = c_void_p(), c_void_p(), c_void_p()
    wanted = _AllocNode(1, 0, _ON_DEVICE, 0, bytes=_PIECE)
    for result in (
        cuda.cuGraphCreate(byref(graph), 0),
        cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(wanted)),
        cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)),
    ):
        if result:
            return int(result)
    return int(cuda.cuGraphLaunch(run, None))


WAYS: Final[dict[str, Callable[[ctypes.CDLL], int]]] = {
    "cuMemAlloc": _linear,
    "cuMemAllocManaged": _managed,
    "cuMemAllocAsync": _pooled,
    "cuMemCreate": _physical,
    "cuArrayCreate": _array,
    "graph allocation node": _graph,
}


def main(way: str, mib: int) -> int:
    """Take memory until it is refused; return the exit code: 1 if the driver failed otherwise."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    result = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    got = 0
    while not result and got < mib:
        result = WAYS[way](cuda)
        got += 0 if result else PIECE_MIB
    sys.stdout.write(f"{got}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return 0 if result in (0, 2) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
