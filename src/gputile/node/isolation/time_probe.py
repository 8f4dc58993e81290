"""Keeps a GPU busy, as a CUDA program: ``python -m gputile.node.isolation.time_probe SECONDS``.

It runs in a process of its own, under the library, on the first GPU that it sees. Its work is filling memory, which
every driver can do without a kernel, and which takes the same time each time; it prints how often a second it was done.
"""

import ctypes
import sys
import time
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from typing import Final

FILLED_MIB: Final = 64
_WORDS: Final = FILLED_MIB << 18
_BATCH: Final = 8  # fills between two events; two batches are on their way at a time
_WARM_UP_S: Final = 0.5  # at first a container may use what it has saved up


class CudaError(RuntimeError):
    """A call of the driver failed."""


def _check(result: int) -> None:
    if result:
        raise CudaError(f"CUDA error {result}")


def fills_a_second(cuda: ctypes.CDLL, seconds: float) -> float:
    """Fill memory for so many seconds; return how often that was done in a second.

    Raises:
        CudaError: a call of the driver failed.
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


def main(seconds: float) -> int:
    cuda, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    try:
        _check(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(f"{fills_a_second(cuda, seconds):.3f}\n")
    except CudaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
