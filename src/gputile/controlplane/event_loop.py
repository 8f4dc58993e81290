"""Keeps the event loop responsive while long lists are processed and many requests are sent."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

SLICE_SECONDS = 0.005
AT_ONCE = 16

Item = TypeVar("Item")
Answer = TypeVar("Answer")


async def yielding_to_loop(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield each of many items, and let the event loop run other tasks in between."""
    ends = time.monotonic() + SLICE_SECONDS
    for item in items:
        yield item
        if time.monotonic() >= ends:
            await asyncio.sleep(0)
            ends = time.monotonic() + SLICE_SECONDS


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable garbage collection, which blocks the event loop. At the end, call ``gc.freeze``."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


async def for_each(
    work: Callable[[Item], Awaitable[Answer]], items: Iterable[Item]
) -> list[Answer]:
    """Call ``work`` for each item, ``AT_ONCE`` at a time. Return the results in any order.

    Starting thousands of tasks would block the event loop. Each worker yields after every item,
    because ``work`` never waits if a server answers fast enough.
    """
    answers, left = list[Answer](), iter(items)

    async def worker() -> None:
        for item in left:
            answers.append(await work(item))
            await asyncio.sleep(0)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return answers


async def run_concurrently(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[bool]],
    gives_up: Callable[[], bool] = lambda: True,
) -> list[Item]:
    """Call ``work`` for each item, ``AT_ONCE`` at a time, and return the items that failed.

    An item has failed if ``work`` returned False. Each failure may take as long as a request's
    time-out. So if ``AT_ONCE`` items in a row have failed and ``gives_up`` returns True, the
    remaining items are skipped. Skipped items count as failed.
    """
    failed, in_a_row = list[Item](), 0

    async def try_item(item: Item) -> None:
        nonlocal in_a_row
        if in_a_row >= AT_ONCE and gives_up():
            failed.append(item)
        elif await work(item):
            in_a_row = 0
        else:
            failed.append(item)
            in_a_row += 1

    await for_each(try_item, items)
    return failed
