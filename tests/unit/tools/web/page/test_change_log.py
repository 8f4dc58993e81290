"""Changes are kept within bounds, and each reader gets those that it has not had, or is told that it is too late."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.web.page.change_log import ChangeLog

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]


@given(st.lists(st.binary(max_size=30), max_size=40), st.integers(1, 10), st.integers(0, 200), st.integers(-2, 45))
def test_a_reader_gets_all_that_it_has_not_had_or_nothing(
    changes: list[bytes], most: int, most_bytes: int, revision: int
) -> None:
    log = ChangeLog(most, most_bytes)
    for change in changes:
        log.append(change)
    found = log.since(revision)
    if found is not None:
        assert 0 <= revision <= len(changes)
        assert [each.encoded for each in found] == changes[revision:]
        assert [each.revision for each in found] == list(range(revision + 1, len(changes) + 1))
        assert len(found) <= most
        assert sum(len(each.encoded) for each in found) <= most_bytes
    else:
        kept = changes[max(revision, 0) :]
        assert revision < 0 or revision > len(changes) or len(kept) > most or sum(map(len, kept)) > most_bytes


async def test_news_wake_all_who_wait() -> None:
    log = ChangeLog()
    waiting = [asyncio.create_task(log.news(0)) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    log.append(b"one")
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
