"""A gang that has to leave whole for one pod leaves whole, though evictions are refused, or the pod goes."""

import pytest

from gputile.api.core import Pod
from tests.unit.controlplane.extender.preemptedgangs import GangWorld

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B5", "M13")]


async def three_of_a_gang(*, group: bool = False) -> tuple[GangWorld, list[str]]:
    """A gang of three beside a pod that stays; a pod is refused that asks for the GPU of any of the gang's pods."""
    world = GangWorld()
    for i in range(3):
        await world.run(f"full{i}", 14, 100)
    gang = await world.gang("g", 3, 3, group=group)
    assert len(world.bound()) == 6
    return world, gang


async def high_comes(world: GangWorld, gib: int = 14) -> Pod:
    high = world.add("high", gib, 10)
    assert not await world.schedule("high")
    await world.round()
    return high


@pytest.mark.parametrize("fate", ["429", "never lost", "never 500", "lost", "500"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("group", [False, True])
async def test_a_refusal_of_one_keeps_nobody_of_the_gang(fate: str, which: int, group: bool) -> None:
    """The one that is asked first, second or third fails once: the gang leaves whole, or stays whole."""
    world, gang = await three_of_a_gang(group=group)
    real, count = world.evict, 0

    async def evict(namespace: str, name: str, uid: str, why: str) -> None:
        nonlocal count
        if count == which:
            world.fates[name] = [fate]
        count += 1
        await real(namespace, name, uid, why)

    world.cluster.evict = evict  # type: ignore[method-assign]
    await high_comes(world)
    await world.live(200)
    assert world.running(gang) == []
    assert "high" in world.bound()
    assert sorted(world.cluster.evicted) == gang, "each leaves once"
    world.check()


@pytest.mark.parametrize("fate", ["lost", "500"])
async def test_whoever_has_perhaps_left_counts_in_its_gang(fate: str) -> None:
    """Three run of a gang of two, on one GPU. The watch is behind: the next choice must not have a second one leave."""
    world = GangWorld()
    for i in range(5):
        await world.run(f"full{i}", 14, 100)
    gang = await world.gang("g", 3, 2, gib=5)
    assert len(world.bound()) == 8
    world.fates = {name: [fate] for name in gang}
    await high_comes(world, 5)
    assert len(world.cluster.evicted) == 1
    world.cluster.readable = False
    await world.round(6)
    world.cluster.readable = True
    for _ in range(3):
        await world.round(6)
    assert len(world.cluster.evicted) == 1
    await world.live(30)
    assert len(world.running(gang)) == 2
    assert "high" in world.bound()
