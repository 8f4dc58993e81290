"""Asks a GPU for a little work at fixed times, as a service does: ``python -m tests.gpu.latency_loop SECONDS``.

The work is filling memory, as in ``isolation.probe``. A request that is late does not put off the next one, so its
latency, from the time at which it was due to its end, has the time in it that it waited for the one before.
"""

import ctypes
import sys
import time
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from statistics import quantiles
from typing import Final

from gputile.node.isolation.probe import FILLED_MIB

PERIOD_S: Final = 0.02
FILLS: Final = 16  # of a request: about 1 ms on an H100, 4 ms on a T4
WARM_UP_S: Final = 1.0
_WORDS: Final = FILLED_MIB << 18


def latencies(cuda: ctypes.CDLL, seconds: float) -> list[float]:
    """Return the latency of each request that was due within so many seconds, in seconds."""
    memory, stream = c_uint64(), c_void_p()
    _check(cuda.cuMemAlloc_v2(byref(memory), c_size_t(4 * _WORDS)))
    _check(cuda.cuStreamCreate(byref(stream), 1))
    begin = due = time.monotonic()
    found = []
    while due < begin + WARM_UP_S + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        for _ in range(FILLS):
            _check(cuda.cuMemsetD32Async(memory, c_uint(0), c_size_t(_WORDS), stream))
        _check(cuda.cuStreamSynchronize(stream))
        if due >= begin + WARM_UP_S:
            found.append(time.monotonic() - due)
        due += PERIOD_S
    return found


def _check(result: int) -> None:
    if result:
        sys.exit(f"CUDA error {result}")


def main(seconds: float) -> None:
    cuda, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    _check(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    hundredths = quantiles(latencies(cuda, seconds), n=100)
    sys.stdout.write(f"{hundredths[49] * 1000:.3f} {hundredths[98] * 1000:.3f}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
