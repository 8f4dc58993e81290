"""A model of an autoscaler whose nodes are of no use, over hours: what is bought for a pod is bounded, and told."""

from itertools import pairwise

import msgspec
import pytest

from gputile.api.core import Node
from gputile.api.well_known import IDLE_NODE_ANNOTATION
from gputile.kube.objects import Deleted
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_node_request_planner import (
    TYPE,
    WAIT,
    Bench,
    arrived,
    asked,
    fragmented,
    node,
    runs,
    waits,
)

pytestmark = pytest.mark.requirement("U8", "B5")

HOURS = 3
STEP = 60


class Cloud:
    """Buys a node for each placeholder that has none, and has it become what ``fate`` says."""

    def __init__(self, bench: Bench, fate: str) -> None:
        self.bench, self._fate = bench, fate
        self.bought: list[int] = []
        self.told: list[str] = []
        self._answered: set[str] = set()

    def run(self) -> None:
        for after in range(10, HOURS * 3600, STEP):
            self._round(after)
            asking = [each.metadata for each in self.bench.waiting.placeholders.values()]
            for name in sorted(each.name for each in asking if IDLE_NODE_ANNOTATION not in each.annotations):
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
            self.bench.put(*(runs(f"{name}-{gpu}", name, gpu, 7) for gpu in range(2)))
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

    def in_vain(self, reason: str = "") -> int:
        """Return how often was told that a node did not come or was of no use."""
        return sum(text.startswith("NodeNotAdded") and reason in text for text in self.told)


@pytest.mark.parametrize(
    ("fate", "most", "reason"),
    [
        ("never", 5, "no node"),
        ("bare", 5, "its agent has reported no GPU"),
        ("leaves bare", 6, "went away before a pod had got its GPUs"),
        ("no units", 5, "cannot all be used"),
        ("unhealthy", 5, "cannot all be used"),
        ("leaves", 6, "went away before a pod had got its GPUs"),
        ("flaps", 6, "went away before a pod had got its GPUs"),
        ("taken", 11, "the pod has no place"),
    ],
)
def test_one_waiting_pod_does_not_buy_nodes_without_end(fate: str, most: int, reason: str) -> None:
    """The first node is bought at once, and the pauses grow until they are an hour long."""
    bench = fragmented()
    bench.put(waits("p", mem=10))
    cloud = Cloud(bench, fate)
    cloud.run()
    assert 2 <= len(cloud.bought) <= most
    pauses = [later - earlier for earlier, later in pairwise(cloud.bought)]
    assert all(later >= earlier - STEP for earlier, later in pairwise(pauses))
    assert cloud.in_vain(reason) >= len(cloud.bought) - 2, cloud.told


def test_a_type_that_has_failed_is_whole_again_once_a_pod_got_the_place_it_was_asked_for() -> None:
    bench = fragmented()
    bench.put(waits("p", mem=10))
    cloud = Cloud(bench, "leaves")
    cloud.run()
    bench.round(10**5)
    assert asked(bench) == 1
    bench.join(node("good", type_=TYPE))
    placed = runs("p", "good", 0, 10)
    meta = msgspec.structs.replace(placed.metadata, resource_version="2")
    bench.put(msgspec.structs.replace(placed, metadata=meta), runs("full", "good", 1, 8))
    bench.round(10**5 + 10)
    bench.put(waits("q", mem=10))
    bench.round(10**5 + 20)
    assert (len(cloud.bought) >= 2, asked(bench)) == (True, 1), "at once"
    bench.join(node("bad", type_=TYPE, gpus=0))
    bench.round(10**5 + 25)
    cloud.leave(node("bad", type_=TYPE))
    bench.round(10**5 + 30)
    assert (asked(bench), len(bench.round(10**5 + 30 + WAIT).created)) == (0, 1), "the pause is the first one again"
