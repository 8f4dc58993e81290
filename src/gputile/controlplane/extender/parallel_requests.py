"""Sends several requests at once, and stops when the API server answers none of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

AT_ONCE = 16


def _always() -> bool:
    return True


async def several_at_once(
    items: Iterable[Item], work: Callable[[Item], Awaitable[bool]], gives_up: Callable[[], bool] = _always
) -> list[Item]:
    """Do ``work`` for each item, ``AT_ONCE`` of them at a time; return those for which it returned False, or was left.

    Each failure may take a request's whole time. So when ``AT_ONCE`` in a row have failed and ``gives_up`` returns
    True, the remaining items are left.
    """
    waiting, failed, in_a_row = iter(items), list[Item](), 0

    async def worker() -> None:
        nonlocal in_a_row
        for item in waiting:
            if in_a_row >= AT_ONCE and gives_up():
                failed.append(item)
            elif await work(item):
                in_a_row = 0
            else:
                failed.append(item)
                in_a_row += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return failed
