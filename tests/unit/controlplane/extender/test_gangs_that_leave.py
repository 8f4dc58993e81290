"""A gang that has to leave whole for one pod leaves whole, though evictions are refused, or the pod goes."""

import pytest

from gputile.api.core import Pod
from gputile.controlplane.half_left_gangs import LASTS_S
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


async def test_the_rest_is_asked_every_five_seconds_and_one_refusal_does_not_keep_the_others() -> None:
    world, gang = await three_of_a_gang()
    refused = gang[1]
    world.fates[refused] = ["429"] * 20
    await high_comes(world)
    assert world.running(gang) == gang[1:]
    await world.live(16)
    assert world.running(gang) == [refused]
    before = len(world.asked)
    await world.live(50)
    assert "high" in world.bound()
    assert 8 <= len(world.asked) - before <= 12
    await world.live(100)
    assert world.running(gang) == []


async def test_nobody_is_asked_again_where_the_first_is_refused() -> None:
    world, gang = await three_of_a_gang()
    world.fates = {name: ["429"] for name in gang}
    await high_comes(world)
    assert len(world.asked) == 1
    await world.live(8)
    assert len(world.asked) == 1
    assert world.running(gang) == gang


async def test_the_rest_leaves_though_the_pod_is_deleted_that_it_leaves_for() -> None:
    world, gang = await three_of_a_gang()

    def deleted(_: Pod) -> None:
        world.end("high")

    world.cluster.on_evict = deleted
    await high_comes(world)
    assert len(world.running(gang)) == 2
    world.cluster.on_evict = lambda _: None
    await world.live(10)
    assert world.running(gang) == []


async def test_the_rest_stays_where_the_gang_is_whole_again_and_new_pods_are_never_asked() -> None:
    """The gang's controller made a new pod, which has found a place, before the others were asked again."""
    world, gang = await three_of_a_gang()
    world.fates = {gang[1]: ["429"] * 2}
    await high_comes(world)
    assert world.running(gang) == gang[1:]
    world.end("high")
    world.end(gang[0])
    assert await world.member("new", "g", 3)
    await world.live(60)
    assert world.running([*gang, "new"]) == [*gang[1:], "new"]


async def test_new_pods_of_a_gang_that_is_not_whole_are_not_asked() -> None:
    world = GangWorld()
    await world.run("full", 14, 100)
    gang = await world.gang("g", 4, 4, gib=10)
    world.fates = {gang[2]: ["429"] * 3, gang[3]: ["429"] * 3}
    world.add("high", 12, 10)
    await world.run("last", 14, 100)
    assert not await world.schedule("high")
    await world.round()
    assert world.running(gang) == gang[2:]
    for name in world.leaving():
        world.end(name)
    assert await world.member("new", "g", 4, gib=10)
    await world.live(60)
    assert world.running([*gang, "new"]) == ["new"]


async def test_the_rest_is_given_up_in_the_end() -> None:
    world, gang = await three_of_a_gang()
    world.fates = {gang[2]: ["429"] * 10_000}
    await high_comes(world)
    await world.live(int(LASTS_S) + 20, 4)
    before = len(world.asked)
    await world.live(300, 4)
    assert len(world.asked) == before
    assert world.running(gang) == [gang[2]]


async def test_pods_that_a_gang_lets_go_may_be_refused() -> None:
    """Four run of a gang of three: one leaves alone, and nobody else has to."""
    world = GangWorld()
    for i in range(2):
        await world.run(f"full{i}", 14, 100)
    gang = await world.gang("g", 4, 3)
    await high_comes(world)
    await world.live(60)
    assert len(world.running(gang)) == 3
    assert "high" in world.bound()


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
