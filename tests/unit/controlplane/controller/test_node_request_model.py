"""A model of an autoscaler whose nodes are of use or not, over hours: what is bought for some pods is bounded."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputile.api.core import Node
from gputile.api.well_known import IDLE_NODE_ANNOTATION
from gputile.core.placement.steps import at_once
from gputile.kube.objects import Deleted
from tests.unit.controlplane.controller.test_node_request_planner import (
    TYPE,
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
STEP = 30
OWN_S = 900  # so often it adds a node by itself, at most
ORDERS = 10  # for one pod in three hours: at once, at once, after 1, 2, 4, 8, 16, 32 and 60 minutes, and one to spare
FATES = ("good", "never", "bare", "leaves bare", "no units", "unhealthy", "leaves", "taken", "flaps")


class Cloud:
    """Buys a node for each placeholder that has none, and has it become what ``fates`` say, over and over.

    It adds nodes by itself, too, for pods that do not fit the sum of the node that is there, which takes one.
    """

    def __init__(self, bench: Bench, pods: Sequence[str], fates: Sequence[str]) -> None:
        self.bench, self.waiting, self._fates = bench, list(pods), fates
        self.bought = 0
        self.events: Counter[str] = Counter()
        self._answered: set[str] = set()
        self._by_itself = 0

    def run(self) -> None:
        for after in range(10, HOURS * 3600, STEP):
            self._round(after)
            if len(self.waiting) > 1 and after >= self._by_itself * OWN_S:
                self._by_itself += 1
                self._join(f"own-{self._by_itself}", self._fates[self._by_itself % len(self._fates)], after)
            asking = [each.metadata for each in self.bench.waiting.placeholders.values()]
            for name in sorted(each.name for each in asking if IDLE_NODE_ANNOTATION not in each.annotations):
                if name not in self._answered and asked(self.bench):
                    self._answered.add(name)
                    self._buy(after)

    def _buy(self, after: int) -> None:
        fate = self._fates[self.bought % len(self._fates)]
        self.bought += 1
        self._join(f"new-{self.bought}", fate, after)

    def _join(self, name: str, fate: str, after: int) -> None:
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
        if fate == "good":
            self._place(name)
        if fate in ("leaves", "leaves bare", "flaps"):
            self._leave(node(name, type_=TYPE))
        if fate == "flaps":
            self._round(after + 9)
            self.bench.join(node(name, type_=TYPE))
            self._round(after + 12)
            self._leave(node(name, type_=TYPE))

    def _leave(self, gone: Node) -> None:
        at_once(self.bench.state.node_event(Deleted(gone)))

    def _place(self, name: str) -> None:
        for gpu in range(2):
            if self.waiting:
                bound = runs(self.waiting.pop(0), name, gpu, 10)
                self.bench.put(
                    msgspec.structs.replace(
                        bound, metadata=msgspec.structs.replace(bound.metadata, resource_version="2")
                    )
                )

    def _round(self, after: float) -> None:
        self.events.update(event.reason for event in self.bench.round(after).events)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.lists(st.sampled_from(FATES), min_size=1, max_size=5))
@example(2, ["good"])
def test_what_is_bought_for_some_pods_is_bounded_and_told(count: int, fates: list[str]) -> None:
    bench, names = fragmented(), [f"p{i}" for i in range(count)]
    bench.put(*(waits(name, mem=10) for name in names))
    cloud = Cloud(bench, names, fates)
    cloud.run()
    assert cloud.bought <= count * ORDERS
    assert cloud.waiting == [] or set(fates) != {"good"}
    in_vain = cloud.bought - fates.count("good") * (1 + cloud.bought // len(fates))
    assert cloud.events["NodeNotAdded"] >= (in_vain > 2 * count)
    bench.drop(*(waits(name, mem=10) for name in names))
    bench.round(HOURS * 3600)
    assert (asked(bench), bench.waiting.placeholders) == (0, {}), "nothing is kept"
