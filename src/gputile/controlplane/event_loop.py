"""Shares the event loop: long lists are taken in turns, and requests several at once."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

SLICE_SECONDS = 0.005


Item = TypeVar("Item")


async def taking_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield each of many items, with other work of the loop in between."""
    ends = time.monotonic() + SLICE_SECONDS
    for item in items:
        yield item
        if time.monotonic() >= ends:
            await asyncio.sleep(0)
            ends = time.monotonic() + SLICE_SECONDS


@contextmanager
def spared_by_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from walking a long list while it is taken in, and ever after: that holds the loop."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


Answer = TypeVar("Answer")

AT_ONCE = 16


async def for_each(work: Callable[[Item], Awaitable[Answer]], items: Iterable[Item]) -> list[Answer]:
    """Do the work for each of ``items``, ``AT_ONCE`` of them at a time; return the answers in any order.

    A task for each would be thousands, which take the event loop for long to begin. Others get their turn after each
    item, also where a server answers so fast that no worker has to wait for it.
    """
    answers, left = list[Answer](), iter(items)

    async def worker() -> None:
        for item in left:
            answers.append(await work(item))
            await asyncio.sleep(0)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return answers


async def several_at_once(
    items: Iterable[Item], work: Callable[[Item], Awaitable[bool]], gives_up: Callable[[], bool] = lambda: True
) -> list[Item]:
    """Do ``work`` for each item, ``AT_ONCE`` of them at a time; return those for which it returned False, or was left.

    Each failure may take a request's whole time. So when ``AT_ONCE`` in a row have failed and ``gives_up`` returns
    True, the remaining items are left.
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
