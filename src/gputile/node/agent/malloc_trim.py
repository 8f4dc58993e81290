"""Keeps the process small.

An agent runs on every GPU node, mostly idle, and must not keep what it needed once.

Importing the bindings leaves 12 MiB of freed memory with the allocator, and a burst of admissions some more. glibc
gives it back when told to (malloc_trim(3)); other C libraries have no such call, and need none.
"""

import ctypes
import gc
from collections.abc import Callable

_M_ARENA_MAX = -8  # mallopt(3)


def limit_arenas() -> None:
    """Have all threads share one pool of memory: gRPC's few threads would each keep one of their own."""
    function = _libc("mallopt")
    if function is not None:
        function(_M_ARENA_MAX, 1)


def settle() -> None:
    """Leave what was loaded so far out of garbage collection, and give back what is free."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Return freed memory to the system."""
    function = _libc("malloc_trim")
    if function is not None:
        function(0)


def _libc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None)
