"""The agent's parts run and end together, and its loops are woken and end."""

import asyncio

import pytest

from gputile.node.agent.__main__ import _together
from gputile.node.agent.api_server import Wakeup
from tests.conftest import HANGS_S


@pytest.mark.anyio
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_all_have_cleaned_up_when_it_has_ended(position: int) -> None:
    """However long one of them takes for it, and though it is told twice."""
    said: list[str] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            said.append("cleaned up")

    parts = [asyncio.sleep(3600), asyncio.sleep(3600)]
    parts.insert(position, careful())
    work = asyncio.create_task(_together(*parts))
    await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    assert said == ["cleaned up"]


@pytest.mark.anyio
async def test_a_part_that_fails_ends_the_others_and_is_told_of() -> None:
    async def fails() -> None:
        raise OSError("gone")

    with pytest.raises(ExceptionGroup) as caught:
        await _together(asyncio.sleep(3600), fails())
    assert caught.group_contains(OSError, match="gone")


@pytest.mark.anyio
async def test_wishes_add_up_to_one() -> None:
    wakeup = Wakeup()
    wakeup.wish()
    wakeup.wish()
    async with asyncio.timeout(HANGS_S):
        await wakeup.wait(2 * HANGS_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await wakeup.wait(60.0)


@pytest.mark.anyio
@pytest.mark.parametrize("turns", range(5))
async def test_a_loop_that_is_told_to_end_ends_though_it_is_woken_in_that_moment(turns: int) -> None:
    async def loop(wakeup: Wakeup) -> None:
        while True:
            await wakeup.wait(60.0)

    async def main() -> bool:
        wakeup = Wakeup()
        task = asyncio.create_task(loop(wakeup))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wakeup.wish()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=HANGS_S)
        task.cancel()
        return bool(done)

    assert await main()
