"""Uses a GPU like a CUDA program, so that the self-test can measure what the library permits.

``python -m gputile.node.isolation.probe memory WAY MIB`` allocates memory in small pieces until the
driver refuses or MIB MiB are allocated, and prints how many MiB it got. WAY is a key of ``WAYS``.
``python -m gputile.node.isolation.probe time SECONDS`` keeps the GPU busy by filling memory, and
prints the number of fills per second. A fill needs no CUDA kernel, so every driver can do it.

The self-test starts the probe as a separate process with the library. The probe uses the first
visible GPU. It prints a line when it has a CUDA context, and then waits for a line of input. So
several probes can start at the same time. The probe calls only the driver API of cuda.h, which the
simulated driver has too.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Final

# Real drivers allocate memory for memory pools and for graphs in units of this size.
PIECE_MIB: Final = 32
_PIECE: Final = PIECE_MIB << 20
_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_ON_DEVICE: Final = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_FLOAT: Final = 0x20  # CU_AD_FORMAT_FLOAT


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("place", c_int),
        ("device", c_int),
        ("rest", c_uint64 * 2),
    )


class _ArrayDescriptor(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class _AllocNode(ctypes.Structure):
    _fields_ = (
        ("type", c_int), ("handles", c_int), ("place", c_int), ("device", c_int),
        ("pool", c_uint64 * 9), ("access", c_void_p), ("count", c_size_t), ("bytes", c_size_t),
        ("pointer", c_uint64),
    )  # fmt: skip


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
    "cuMemAlloc": lambda cuda: cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(_PIECE)),
    "cuMemAllocManaged": lambda cuda: cuda.cuMemAllocManaged(
        byref(c_uint64()), c_size_t(_PIECE), 1
    ),
    "cuMemAllocAsync": lambda cuda: cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(_PIECE), None),
    "cuMemCreate": lambda cuda: cuda.cuMemCreate(
        byref(c_uint64()),
        c_size_t(_PIECE),
        byref(_AllocationProp(1, 0, _ON_DEVICE, 0)),
        c_uint64(0),
    ),
    "cuArrayCreate": lambda cuda: cuda.cuArrayCreate_v2(
        byref(c_void_p()), byref(_ArrayDescriptor(1024, _PIECE // (1024 * 16), _FLOAT, 4))
    ),
    "graph allocation node": _graph,
}


def allocate(cuda: ctypes.CDLL, way: str, mib: int) -> int:
    """Allocate memory until the driver refuses or ``mib`` is reached. Print the allocated MiB.

    Return the driver's error code, or 0 if there was no error or the driver was out of memory.
    """
    got = result = 0
    while not result and got < mib:
        result = WAYS[way](cuda)
        got += 0 if result else PIECE_MIB
    _print(got)
    sys.stdin.readline()
    return 0 if result == _OUT_OF_MEMORY else result


FILLED_MIB: Final = 64
_WORDS: Final = FILLED_MIB << 18
_BATCH: Final = 8  # fills per event. Two batches of fills are in progress at the same time.
_WARM_UP_S: Final = 0.5  # enough to use up the burst that a container's ceiling permits at first


class CudaError(RuntimeError):
    """A call of the driver failed."""


def _check(result: int) -> None:
    if result:
        raise CudaError(f"CUDA error {result}")


def fills_a_second(cuda: ctypes.CDLL, seconds: float) -> float:
    """Fill memory for ``seconds``, and return the fills per second.

    Raises CudaError if a call of the driver failed.
    """
    memory, stream, events = c_uint64(), c_void_p(), (c_void_p(), c_void_p())
    _check(cuda.cuMemAlloc_v2(byref(memory), c_size_t(4 * _WORDS)))
    _check(cuda.cuStreamCreate(byref(stream), 1))
    for event in events:
        _check(cuda.cuEventCreate(byref(event), 2))

    def fill_until(end: float) -> int:
        done = 0
        while time.monotonic() < end:
            for event in events:
                _check(cuda.cuEventSynchronize(event))
                for _ in range(_BATCH):
                    _check(cuda.cuMemsetD32Async(memory, c_uint(0), c_size_t(_WORDS), stream))
                _check(cuda.cuEventRecord(event, stream))
                done += _BATCH
        _check(cuda.cuStreamSynchronize(stream))
        return done

    fill_until(time.monotonic() + _WARM_UP_S)
    begin = time.monotonic()
    return fill_until(begin + seconds) / (time.monotonic() - begin)


def main(arguments: list[str]) -> int:
    """Run the probe. Return the exit code, which is 1 if a call of the driver failed."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    result = (
        cuda.cuInit(0)
        or cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
        or cuda.cuCtxSetCurrent(context)
    )
    _print("ready")
    sys.stdin.readline()
    try:
        _check(result)
        if arguments[0] == "memory":
            _check(allocate(cuda, arguments[1], int(arguments[2])))
        else:
            _print(f"{fills_a_second(cuda, float(arguments[1])):.3f}")
    except CudaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _print(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
