"""A loop that waits: woken early, late, and told to end in the moment in which it is woken."""

import asyncio

import pytest

from gputile.node.agent.cluster.informer import Wakeup


@pytest.mark.anyio
async def test_wishes_add_up_to_one() -> None:
    wakeup = Wakeup()
    wakeup.wish()
    wakeup.wish()
    async with asyncio.timeout(10.0):
        await wakeup.wait(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await wakeup.wait(60.0)


@pytest.mark.anyio
async def test_without_a_wish_waiting_ends_in_time() -> None:
    async with asyncio.timeout(10.0):
        await Wakeup().wait(0.01)


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
        done, _ = await asyncio.wait([task], timeout=2.0)
        task.cancel()
        return bool(done)

    assert await main()
