"""Whatever becomes of preemptions, no GPU is given away twice, and no place is kept for ever.

Pods of all priorities come and go while evictions are refused, answers get lost, the watch is behind, extenders die,
clocks jump, and the node is cordoned and opened again: nobody is evicted on it meanwhile. kube-scheduler's part is
played in any order: it asks for any pod, at any time.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from tests.conftest import examples
from tests.unit.controlplane.extender.cluster import Fate
from tests.unit.controlplane.extender.preempting import PreemptingWorld

pytestmark = pytest.mark.requirement("B1", "B5")

GIB = (10, 7, 12, 5, 9, 14, 6, 11)  # of each pod; the two GPUs have 15 each
PODS = len(GIB)
STEPS = (
    *("create", "create", "come", "come", "come", "schedule", "schedule", "watch", "watch", "round", "round", "round"),
    *("end", "end", "late end", "list", "refuse", "mute", "die", "jump", "back", "delete", "nominate", "lose", "slow"),
    *("cordon", "open"),
)
DAY_S = 86_400


class World(PreemptingWorld):
    """The cluster, and a check of each eviction."""

    def __init__(self) -> None:
        super().__init__("a")
        self.cordoned = False
        self.cluster.on_evict = self._on_evict

    def cordon(self, cordoned: bool) -> None:
        """Cordon the node, or open it, as the extender knows at once."""
        self.cordoned = cordoned
        self.change_node("a", cordoned=cordoned)

    def _on_evict(self, victim: Pod) -> None:
        assert not self.cordoned
        waiting = [pod for pod in self.cluster.pods.values() if RESERVATION_ANNOTATION in pod.metadata.annotations]
        unbound = [pod for pod in waiting if not pod.spec.node_name]
        priority = victim.spec.priority or 0
        assert any((pod.spec.priority or 0) > priority for pod in unbound), "nobody who is more important waits"

    async def do(self, step: str, number: int) -> None:
        name, pod = f"p{number}", self.pod(f"p{number}")
        match step:
            case "create" if pod is None:
                self.add(name, GIB[number], number % 4)
                self.watch(name)
            case "come" if pod is None:
                self.add(name, GIB[number], number % 4)
                await self.schedule(name)
                self.watch(name)
                await self.round()
            case "schedule":
                await self.schedule(name)
            case "watch":
                self.watch(name)
            case "list":
                self.watch_all()
            case "round":
                await self.round(1 + number)
            case "end" if name in self.leaving():
                self.end(name)
            case "late end" if name in self.leaving():
                self.end(name, seen=False)
            case "delete" if pod is not None and not pod.spec.node_name:
                self.end(name)
            case "cordon" | "open":
                self.cordon(step == "cordon")
            case "refuse":
                self.cluster.refused_evictions ^= {name}
            case "mute":
                self.cluster.writable = not self.cluster.writable
            case "lose":
                fate = Fate.LOST_EXECUTED if number % 2 else Fate.LOST_NEVER
                self.cluster.next_fate = lambda: fate
                await self.schedule(name)
                self.cluster.next_fate = lambda: Fate.OK
            case "die":
                self.cluster.execute_late()
                self.replace_leaders()
                self.cordon(self.cordoned)
            case "jump":
                self.set_clocks(self.now_s + 100 * number)
            case "back":
                self.set_clocks(self.now_s - 100 * number)
            case "slow" if pod is not None and pod.spec.node_name:
                pod.metadata.deletion_timestamp = self.stamp(365 * DAY_S)  # somebody deletes it
                self.cluster.touch(pod)
            case "nominate" if pod is not None and not pod.spec.node_name:
                pod.status.nominated_node_name = "a"
                self.cluster.touch(pod)

    def plans(self) -> set[str]:
        """Return which places are kept."""
        return {booking.plan for booking in self.extender.ledger.bookings() if booking.reserved}

    async def calm_down(self) -> None:
        """Let all go well, for long enough."""
        self.cordon(False)
        self.cluster.refused_evictions, self.cluster.writable = set(), True
        for _ in range(12):
            for name in self.leaving():
                self.end(name)
            self.watch_all()
            for number in range(PODS):
                await self.schedule(f"p{number}")
                self.check()
            self.watch_all()
            await self.round(101)  # in all of them also who was refused is asked again


@pytest.mark.anyio
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, PODS - 1)), min_size=20, max_size=80))
async def test_no_gpu_is_given_away_twice_and_no_place_is_kept_for_ever(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step, number in steps:
        await world.do(step, number)
        world.check()
    await world.calm_down()
    waiting = [pod for pod in world.cluster.pods.values() if not pod.spec.node_name]
    bound = [pod for pod in world.cluster.pods.values() if pod.spec.node_name]
    for pod in waiting:  # it would fit the node alone: somebody as important is there
        assert any((other.spec.priority or 0) >= (pod.spec.priority or 0) for other in bound)
    kept = world.plans()
    world.pass_time(2 * DAY_S)
    await world.round()
    assert kept.isdisjoint(world.plans())
