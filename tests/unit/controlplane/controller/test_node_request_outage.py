"""Against a model of a whole cluster over hours: as many nodes are bought as are needed, also by a cloud with none."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputile.api.core import Pod
from tests.unit.controlplane.controller.modelcloud import GPUS, UNITS, ModelCloud, Weather
from tests.unit.controlplane.controller.test_node_request_planner import WAIT, Bench, tolerant_member, waits

pytestmark = pytest.mark.requirement("U8", "B5")

LONGEST = 3 * 3600  # until the last pod has its place: outage, pause and the next attempt


def like(count: int, units: int) -> list[Pod]:
    return [waits(f"p{i:02}", mem=units) for i in range(count)]


@settings(max_examples=12, deadline=None)
@example(free=[], count=1, units=10, outage=3 * WAIT, joins_in=60, oldest_first=False)
@example(free=[8, 8], count=2, units=10, outage=3 * WAIT, joins_in=60, oldest_first=False)
@example(free=[8, 8], count=3, units=10, outage=WAIT + 300, joins_in=600, oldest_first=True)
@given(
    free=st.lists(st.integers(0, 8), min_size=0, max_size=4).filter(lambda each: len(each) % GPUS == 0),
    count=st.integers(1, 7),
    units=st.integers(9, 15),
    outage=st.sampled_from([0, 300, WAIT + 100, WAIT + 700, 2 * WAIT + 100, 3 * WAIT, 5 * WAIT]),
    joins_in=st.sampled_from([0, 30, 120, 600]),
    oldest_first=st.booleans(),
)
def test_pods_of_one_size_bring_as_many_nodes_as_they_need(
    free: list[int], count: int, units: int, outage: float, joins_in: float, oldest_first: bool
) -> None:
    """The cloud has no nodes for a while, and then sells all that is asked for."""
    cloud = ModelCloud(Bench(), Weather([(0, outage)], joins_in), oldest_first=oldest_first)
    for i in range(0, len(free), GPUS):
        cloud.has(f"old-{i}", free[i : i + GPUS])
    cloud.bench.put(*like(count, units))
    cloud.run(outage + LONGEST)
    assert cloud.unplaced() == []
    assert cloud.bought == -(-count // (GPUS * (UNITS // units)))
    assert cloud.bench.waiting.placeholders == {}, "nothing is kept"
    for name in {name for _, name, _, _ in cloud.said}:
        times = [(reason, message, after) for after, who, reason, message in cloud.said if who == name]
        for reason, message, after in times:
            again = [other for *said, other in times if said == [reason, message] and 0 < other - after < 600]
            assert len(again) <= 1, (reason, message)


@settings(max_examples=12, deadline=None)
@example(free=[], count=1, units=10, bare=1, joins_in=60, oldest_first=False)
@example(free=[], count=3, units=10, bare=1, joins_in=60, oldest_first=True)
@example(free=[8, 8], count=2, units=10, bare=2, joins_in=600, oldest_first=False)
@given(
    free=st.lists(st.integers(0, 8), min_size=0, max_size=4).filter(lambda each: len(each) % GPUS == 0),
    count=st.integers(1, 7),
    units=st.integers(9, 15),
    bare=st.integers(1, 3),
    joins_in=st.sampled_from([0, 30, 120, 600]),
    oldest_first=st.booleans(),
)
def test_nodes_that_stay_without_gpus_keep_nobody_from_the_next_ones(
    free: list[int], count: int, units: int, bare: int, joins_in: float, oldest_first: bool
) -> None:
    """The first nodes are of no use, and Karpenter takes them for starting ones, for ever."""
    cloud = ModelCloud(Bench(), Weather(joins_in=joins_in, bare=bare), oldest_first=oldest_first)
    for i in range(0, len(free), GPUS):
        cloud.has(f"old-{i}", free[i : i + GPUS])
    cloud.bench.put(*like(count, units))
    cloud.run((bare + 1) * LONGEST)
    assert cloud.unplaced() == []
    assert cloud.bought == bare + -(-count // (GPUS * (UNITS // units)))
    assert cloud.bench.waiting.placeholders == {}, "nothing is kept"


@settings(max_examples=12, deadline=None)
@example(size=7, most_nodes=3, idle=0, joins_in=60)
@example(size=3, most_nodes=10, idle=1, joins_in=0)
@given(
    size=st.integers(1, 9),
    most_nodes=st.integers(1, 10),
    idle=st.integers(0, 2),
    joins_in=st.sampled_from([0, 30, 120, 600]),
)
def test_a_gang_brings_as_many_nodes_as_it_needs_beside_those_it_starts_on(
    size: int, most_nodes: int, idle: int, joins_in: float
) -> None:
    """The autoscaler looks at any moment, also while the gang starts where placeholders have stood."""
    cloud = ModelCloud(Bench(gangs=True, most_nodes=most_nodes), Weather(joins_in=joins_in))
    for i in range(idle):
        cloud.has(f"old-{i}", [UNITS] * GPUS)
    cloud.bench.put(*(tolerant_member(number, size) for number in range(size)))
    cloud.run(LONGEST)
    assert cloud.unplaced() == []
    assert cloud.bought == max(0, -(-size // GPUS) - idle)
    assert cloud.bench.waiting.placeholders == {}, "nothing is kept"
