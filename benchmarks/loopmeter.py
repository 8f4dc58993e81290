"""Measures how long single callbacks block an event loop, in wall-clock and CPU time of its thread.

On a quiet machine both are the same. On a busy one, wall-clock time includes the time of other programs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


class LoopMeter:
    """Records the longest callback while it is ``watching``, in CPU seconds and in wall-clock seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_wall = 0.0
        self.total = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback that an event loop of this thread starts within the context."""
        plain = asyncio.Handle._run  # noqa: SLF001 - asyncio has no public hook for callbacks

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
    """One handler; ``drive`` runs it on an event loop, and has the meter watch the part to be measured."""

    what: str
    drive: Callable[[LoopMeter], Coroutine[Any, Any, None]]
