"""Whatever is refused or lost, and whoever comes and goes: a gang that has to leave whole does not leave in part.

Single pods and gangs have gangs leave; the answers to evictions are good ones, refusals, and none at all. Those that
wait are deleted, and the watch is behind. The leader stays. In the end all that wait are gone, so nobody but the memory
of evictions has the rest of a gang leave.
"""

import random

import pytest

from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from tests.unit.controlplane.controller.preemptinggangs import PreemptingBench
from tests.unit.controlplane.extender.preemptedgangs import GangWorld

pytestmark = pytest.mark.requirement("B5", "M13")


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(25))
async def test_no_gang_leaves_in_part_for_single_pods(seed: int) -> None:
    dice, world = random.Random(seed), GangWorld()
    gangs: dict[str, tuple[list[str], int]] = {}
    fates = ("429", "429", "never lost", "never 500", "lost", "500", "ok", "ok")
    for number in range(40):
        match dice.randrange(5):
            case 0 if len(gangs) < 8:
                size, name = dice.randint(1, 3), f"g{number}x"
                names = await world.gang(name, size + dice.randrange(2), size, gib=dice.choice((5, 7, 10, 12)))
                for each in [each for each in names if each not in world.bound()]:
                    world.end(each)
                there = [each for each in names if each in world.bound()]
                if len(there) >= size:
                    gangs[name] = there, size
                else:
                    for each in there:
                        world.end(each)
            case 1 | 2:
                world.add(f"high{number}", dice.choice((5, 9, 12, 14)), dice.randint(1, 3))
                await world.schedule(f"high{number}")
            case 3:
                waiting = [name for _, name in world.cluster.pods if name.startswith("high")]
                if waiting:
                    world.end(dice.choice(waiting))
            case _:
                pass
        for names, _ in gangs.values():
            for name in names:
                world.fates.setdefault(name, []).append(dice.choice(fates))
        for name in world.leaving():
            if dice.random() < 0.5:
                world.end(name)
        if dice.random() < 0.6:
            world.watch_all()
        for _, name in list(world.cluster.pods):
            if name.startswith("high") and dice.random() < 0.5:
                await world.schedule(name)
        await world.round(dice.choice((1, 2, 5, 20)))
        world.check()
    world.fates = {}
    for name in [name for _, name in world.cluster.pods if name.startswith("high") and name not in world.bound()]:
        world.end(name)
    for _ in range(60):
        for name in world.leaving():
            world.end(name)
        world.watch_all()
        for _, name in list(world.cluster.pods):
            await world.schedule(name)
        world.watch_all()
        await world.round(5)
    for name, (names, size) in gangs.items():
        assert not world.running(names) or len(world.running(names)) >= size, name


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(25))
async def test_no_gang_leaves_in_part_for_gangs(seed: int) -> None:
    dice, bench = random.Random(seed), PreemptingBench(gpus=8)
    cluster = bench.cluster
    bench.ends(*list(cluster.pods))
    victims: dict[str, tuple[list[str], int]] = {}
    gpu = 0
    while gpu < 8:
        count = min(dice.randint(1, 4), 8 - gpu)
        size, name = max(1, count - dice.randrange(2)), f"v{gpu}"
        bench.labels = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: str(size)}
        victims[name] = [f"{name}-{i}" for i in range(count)], size
        for each in victims[name][0]:
            bench.low(each, gpu)
            gpu += 1

    async def go_on(after: float, most: float) -> None:
        for each in [each for each in cluster.pods.values() if each.metadata.deletion_timestamp]:
            if dice.random() < most:
                bench.ends(each.metadata.uid)
            else:
                bench.watch(each)
        await bench.write(after)

    for number in range(40):
        waiting = sorted({uid.rpartition("-")[0] for uid in cluster.pods if uid.startswith("g")})
        if len(waiting) < 3 and dice.random() < 0.3:
            bench.comes(f"g{number}", dice.randint(1, 3), priority=dice.randint(1, 5))
        elif waiting and dice.random() < 0.1:
            gone = dice.choice(waiting)
            bench.ends(*[uid for uid in list(cluster.pods) if uid.rpartition("-")[0] == gone])
        low = [uid for uid in cluster.pods if uid.startswith("v")]
        cluster.prompt = dice.random() < 0.5
        cluster.refused = {uid for uid in low if dice.random() < 0.3}
        cluster.lost = {uid: dice.random() < 0.5 for uid in low if dice.random() < 0.3}
        await go_on(dice.choice((1, 2, 6, 20)), 0.5)
    cluster.refused, cluster.lost = set(), {}
    bench.ends(*[uid for uid, each in cluster.pods.items() if uid.startswith("g") and not each.spec.node_name])
    for _ in range(40):
        await go_on(6, 1.0)
    staying = {each.metadata.uid for each in cluster.pods.values() if each.metadata.deletion_timestamp is None}
    for name, (uids, size) in victims.items():
        running = staying.intersection(uids)
        assert not running or len(running) >= size, name
