"""Requests for many objects, several at once, and updates between them."""

import asyncio

import pytest

from gputile.controlplane.event_loop import AT_ONCE, run_concurrently


class Answers:
    """Says yes or no to each item, a moment later, and counts how many ask at once."""

    def __init__(self, refused: set[int]) -> None:
        self.refused = refused
        self.asked: list[int] = []
        self.now = self.most = 0

    async def __call__(self, item: int) -> bool:
        self.asked.append(item)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return item not in self.refused


@pytest.mark.anyio
async def test_every_item_is_asked_once_and_some_at_a_time() -> None:
    answers = Answers(refused={3, 50})
    assert sorted(await run_concurrently(range(100), answers)) == [3, 50]
    assert sorted(answers.asked) == list(range(100))
    assert answers.most == AT_ONCE


@pytest.mark.anyio
async def test_nothing_more_is_asked_where_nothing_is_answered() -> None:
    answers = Answers(refused=set(range(1000)))
    assert sorted(await run_concurrently(range(1000), answers)) == list(range(1000))
    assert len(answers.asked) < 3 * AT_ONCE
