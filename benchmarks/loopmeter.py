"""How long single callbacks hold an event loop: in CPU time, since the machine may be busy with other work."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock


class LoopMeter:
    """Keeps the longest hold of the loop, in CPU seconds, while it is ``watching``."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.total = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback that an event loop of this thread begins within the context."""
        plain = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            started = time.thread_time_ns()
            try:
                plain(handle)
            finally:
                took = (time.thread_time_ns() - started) / 1e9
                self.longest = max(self.longest, took)
                self.total += took

        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield


@dataclass(frozen=True, slots=True)
class Case:
    """One handler: ``drive`` has it work on an event loop, and lets the meter watch the part that counts."""

    what: str
    drive: Callable[[LoopMeter], Awaitable[None]]
