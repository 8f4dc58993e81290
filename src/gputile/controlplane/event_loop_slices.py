"""Runs computations in steps on the event loop, so that nothing else waits for them for long."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from gputile.core.placement.steps import Steps

T = TypeVar("T")

SLICE_SECONDS = 0.005


async def in_slices(steps: Steps[T], may_go_on: Callable[[], bool] = lambda: True) -> T | None:
    """Return what ``steps`` come to, with other work of the loop in between; None where it may not go on any more.

    They are closed in any case. A slice ends with the first step that passes ``SLICE_SECONDS``; it has one at least.
    """
    try:
        while True:
            ends = time.monotonic() + SLICE_SECONDS
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if time.monotonic() >= ends:
                    break
            await asyncio.sleep(0)
            if not may_go_on():
                return None
    finally:
        steps.close()
