"""A model of an autoscaler whose nodes are of no use, over hours: what is bought for a pod is bounded, and told."""

from itertools import pairwise

import pytest

from gputile.api.core import Node
from gputile.kube.objects import Deleted
from tests.fakes.corebuilders import bound
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_node_request_planner import (
    TYPE,
    Bench,
    arrived,
    asked,
    fragmented,
    node,
    waits,
)

pytestmark = pytest.mark.requirement("U8", "B5")

HOURS = 3
STEP = 60


class Cloud:
    """Buys a node for each placeholder beyond those on idle nodes, and has it become what ``fate`` says."""

    def __init__(self, bench: Bench, fate: str) -> None:
        self.bench, self._fate = bench, fate
        self.bought: list[int] = []
        self.told: list[str] = []
        self._answered: set[str] = set()

    def run(self) -> None:
        for after in range(10, HOURS * 3600, STEP):
            self._round(after)
            for name in sorted(each.metadata.name for each in self.bench.waiting.placeholders.values()):
                if name not in self._answered and asked(self.bench):
                    self._answered.add(name)
                    self._buy(after)

    def _buy(self, after: int) -> None:
        self.bought.append(after)
        name, fate = f"new-{len(self.bought)}", self._fate
        if fate == "never":
            return
        self.bench.join(node(name, type_=TYPE, gpus=0))
        self._round(after + 3)
        if fate in ("no units", "unhealthy"):
            self.bench.join(arrived(name, units=0, unhealthy=(0, 1) if fate == "unhealthy" else ()))
        elif fate not in ("bare", "leaves bare"):
            self.bench.join(node(name, type_=TYPE))
        if fate == "taken":
            self.bench.put(*(bound(f"{name}-{gpu}", name, gpu, 7) for gpu in range(2)))
        self._round(after + 6)
        if fate in ("leaves", "leaves bare", "flaps"):
            self.leave(node(name, type_=TYPE))
        if fate == "flaps":
            self._round(after + 9)
            self.bench.join(node(name, type_=TYPE))
            self._round(after + 12)
            self.leave(node(name, type_=TYPE))

    def leave(self, gone: Node) -> None:
        at_once(self.bench.state.node_event(Deleted(gone)))

    def _round(self, after: float) -> None:
        self.told += [f"{event.reason}: {event.message}" for event in self.bench.round(after).events]

    def in_vain(self) -> int:
        """Return how often was told that a node did not come or was of no use."""
        return sum(text.startswith("NodeNotAdded") and "another node is requested later" in text for text in self.told)


@pytest.mark.parametrize(
    ("fate", "most"),
    [
        ("never", 5),
        ("bare", 5),
        ("leaves bare", 6),
        ("no units", 5),
        ("unhealthy", 5),
        ("leaves", 6),
        ("flaps", 6),
        ("taken", 11),
    ],
)
def test_one_waiting_pod_does_not_buy_nodes_without_end(fate: str, most: int) -> None:
    """The first node is bought at once, and the pauses grow until they are an hour long."""
    bench = fragmented()
    bench.put(waits("p", mem=10))
    cloud = Cloud(bench, fate)
    cloud.run()
    assert 2 <= len(cloud.bought) <= most
    pauses = [later - earlier for earlier, later in pairwise(cloud.bought)]
    assert all(later >= earlier - STEP for earlier, later in pairwise(pauses))
    assert cloud.in_vain() >= len(cloud.bought) - 2, cloud.told


def test_a_pod_whose_nodes_are_of_no_use_keeps_no_other_pod_from_one() -> None:
    bench = fragmented()
    bench.join(node("m"))
    bench.put(waits("p", mem=10), bound("c", "m", 0, 7), bound("d", "m", 1, 7))
    cloud = Cloud(bench, "leaves")
    cloud.run()
    bench.round(HOURS * 3600)
    assert asked(bench) == 0
    bench.put(waits("q", mem=10))
    bench.round(HOURS * 3600 + 10)
    assert asked(bench) == 1


def test_more_waiting_pods_than_nodes_at_once_do_not_buy_nodes_without_end() -> None:
    """There are always some for which a node is requested, and others take all GPUs."""
    bench = Bench(*(node(f"m{i}") for i in range(5)), most_nodes=2)
    bench.put(*(bound(f"r{i}-{gpu}", f"m{i}", gpu, 7) for i in range(5) for gpu in range(2)))
    bench.put(*(waits(f"p{i}", mem=10) for i in range(5)))
    cloud = Cloud(bench, "taken")
    cloud.run()
    assert 5 <= len(cloud.bought) <= 5 * 11
