"""How long single callbacks hold an event loop: by the clock, and in CPU time of the loop's thread.

On a quiet machine the two are the same. On a busy one the clock counts other programs' turns too.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


class LoopMeter:
    """Keeps the longest hold of the loop while it is ``watching``: in CPU seconds, and in seconds by the clock."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_wall = 0.0
        self.total = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback that an event loop of this thread begins within the context."""
        plain = asyncio.Handle._run  # noqa: SLF001 - asyncio has no other place to measure at

        def timed(handle: asyncio.Handle) -> None:
            began, started = time.perf_counter(), time.thread_time_ns()
            try:
                plain(handle)
            finally:
                took = (time.thread_time_ns() - started) / 1e9
                self.longest = max(self.longest, took)
                self.longest_wall = max(self.longest_wall, time.perf_counter() - began)
                self.total += took

        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield


@dataclass(frozen=True, slots=True)
class Case:
    """One handler: ``drive`` has it work on an event loop, and lets the meter watch the part that counts."""

    what: str
    drive: Callable[[LoopMeter], Coroutine[Any, Any, None]]
