"""Whatever becomes of gangs that preempt, no GPU holds too much, and nobody is evicted without a whole plan.

Single pods and gangs of all priorities come and go while evictions are refused, writes fail, watches are behind,
leaders change and clocks jump. The extender binds what it may, by what it has heard.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration, GangConfiguration
from gputile.api.core import Pod
from gputile.api.well_known import GANG_NAME_LABEL
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import has_gang_gate
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.bind import PodBinding, assume_pod
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Replaced
from tests.conftest import examples
from tests.fakes.corebuilders import pod
from tests.fakes.coroutines import at_once
from tests.stateful.gangmodel import annotated, held_units, units_of
from tests.unit.controlplane.controller.preemptinggangs import PreemptingBench
from tests.unit.controlplane.controller.test_gang_planner import SECOND, node

pytestmark = pytest.mark.requirement("B5", "M13")

GPUS, UNITS = 3, 4
CONFIGURATION = Configuration(
    admission=AdmissionConfiguration(gangs=True),
    gangs=GangConfiguration(patience_seconds=86_400),  # no gang keeps others behind it here
)
STEPS = (
    *("single", "single", "single", "gang", "gang", "round", "round", "round", "round", "hear", "hear", "told", "told"),
    *(
        "schedule",
        "schedule",
        "schedule",
        "leave",
        "leave",
        "end",
        "refuse",
        "lose",
        "mute",
        "leader",
        "jump",
        "back",
        "wait",
    ),
)


class World(PreemptingBench):
    """One node of three GPUs; an extender and a controller that hear what happens when they are told to."""

    def __init__(self) -> None:
        super().__init__(CONFIGURATION, gpus=GPUS)
        self.ends(*list(self.cluster.pods))
        self.cluster.prompt, self.cluster.on_evict = False, self.on_evict
        self.count = 0
        self.unknown = set[str]()  # gangs of which a rest may stay: nobody knows of it any more
        self.extender = Ledger(self.view.ledger.configuration)
        self.extender.apply_node(node(gpus=GPUS))
        self.engine = PlacementEngine(self.extender)

    def on_evict(self, victim: Pod) -> None:
        """Some gang that is more important has a whole plan, which fits beside all that are as important as itself.

        As far as the controller was told. The rest of a gang leaves in any case.
        """
        if self.gang_of(victim) in self.in_part():
            return
        told = list(self.cluster.told.values())
        holds = [
            (each, hold) for each in told if not each.spec.node_name and (hold := reservation_of(each)) is not None
        ]
        for plan in {hold.plan for _, hold in holds}:
            members = [each for each, hold in holds if hold.plan == plan]
            priority = min(each.spec.priority or 0 for each in members)
            if (victim.spec.priority or 0) >= priority or len(members) < next(
                h.pods for _, h in holds if h.plan == plan
            ):
                continue
            staying = [each for each in told if each.spec.node_name and (each.spec.priority or 0) >= priority]
            staying = [each for each in staying if not each.metadata.deletion_timestamp]
            held = held_units([*staying, *members], 0)
            if max(held.values()) <= UNITS:
                return
        raise AssertionError(f"{victim.metadata.name} leaves for no plan")

    def gang_of(self, one: Pod) -> str:
        return one.metadata.labels.get(GANG_NAME_LABEL, "")

    def in_part(self) -> set[str]:
        """Return the gangs of which pods were evicted, and others stay."""
        staying = {self.gang_of(each) for each in self.bound() if not each.metadata.deletion_timestamp}
        evicted = {uid.rpartition("-")[0] for uid in self.cluster.evicted}
        return (staying & evicted) - {""}

    def bound(self) -> list[Pod]:
        return [each for each in self.cluster.pods.values() if each.spec.node_name]

    def waiting(self) -> list[Pod]:
        return [each for each in self.cluster.pods.values() if not each.spec.node_name]

    def hear(self) -> None:
        """The controller is told all."""
        self.cluster.told = dict(self.cluster.pods)
        at_once(self.view.pod_event(Replaced(list(self.cluster.pods.values()))))

    def told(self) -> None:
        """The extender is told all."""
        self.extender.set_time(int(self.now_s * SECOND))
        for uid in [booking.uid for booking in self.extender.bookings() if booking.uid not in self.cluster.pods]:
            self.extender.remove_pod(uid)
        for each in self.cluster.pods.values():
            self.extender.apply_pod(each)

    def schedule(self) -> None:
        self.extender.set_time(int(self.now_s * SECOND))
        for each in sorted(self.waiting(), key=lambda one: -(one.spec.priority or 0)):
            held = self.extender.booking(each.metadata.uid)
            if has_gang_gate(each) or (held is not None and not held.reserved):
                continue
            binding = assume_pod(self.engine, each, "n", int(self.now_s * SECOND), 0.0)
            if not isinstance(binding, PodBinding):
                continue
            if binding.version not in ("", each.metadata.resource_version):
                self.extender.forget(each.metadata.uid)
                continue
            bound = annotated(each, **binding.body.metadata.annotations)
            bound = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_name="n"))
            self.cluster.store(bound)
            self.extender.confirm(each.metadata.uid)

    async def do(self, step: str, number: int) -> None:
        self.count += 1
        match step:
            case "single":
                one = pod(f"s{self.count}", mem=1 + number % UNITS)
                one.spec.priority = number % 3
                self.cluster.store(one)
                self.schedule()
            case "gang":
                before = set(self.cluster.pods)
                self.comes(f"g{self.count}", 1 + number % 3, priority=1 + number % 4)
                assert len(self.cluster.pods) > len(before)
            case "round":
                await self.write()
            case "hear":
                self.hear()
            case "told":
                self.told()
            case "schedule":
                self.schedule()
            case "leave":
                for each in [each for each in self.bound() if each.metadata.deletion_timestamp][:number]:
                    del self.cluster.pods[each.metadata.name]
                    if number % 2:
                        self.tell_gone(each)
            case "end" if self.cluster.pods:
                del self.cluster.pods[sorted(self.cluster.pods)[number % len(self.cluster.pods)]]
            case "refuse":
                self.cluster.refused ^= set(sorted(self.cluster.pods)[number::2])
            case "lose":
                for uid in sorted(self.cluster.pods)[number::3]:
                    if self.cluster.lost.pop(uid, None) is None:
                        self.cluster.lost[uid] = number % 2 == 0
            case "mute":
                self.cluster.mute = not self.cluster.mute
            case "leader":
                self.unknown |= self.in_part()
                self.planner = GangPlanner(self.view.ledger.configuration, self.new_plan)
            case "jump":
                self.unknown |= self.in_part()
                self.now_s += 100.0 * number
            case "back":
                self.now_s -= 100.0 * number
            case "wait":
                self.now_s += 11

    def check(self) -> None:
        held = held_units(self.bound(), None)
        assert all(units <= UNITS for units in held.values()), held

    async def calm_down(self) -> None:
        """Let all go well, for long enough."""
        self.cluster.refused, self.cluster.lost, self.cluster.mute = set(), {}, False
        for _ in range(40):
            for each in [each for each in self.bound() if each.metadata.deletion_timestamp]:
                del self.cluster.pods[each.metadata.name]
            self.told()
            self.hear()
            self.schedule()
            self.check()
            self.hear()
            await self.write(31)  # in all of them also who was refused is asked again


@pytest.mark.anyio
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), min_size=20, max_size=60))
async def test_no_gpu_holds_too_much_and_nobody_is_evicted_without_a_whole_plan(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step, number in steps:
        await world.do(step, number)
        world.check()
    await world.calm_down()
    evicted = len(world.cluster.evicted)
    gangs: dict[str, list[Pod]] = {}
    for each in world.waiting():
        if has_gang_gate(each):
            gangs.setdefault(each.metadata.labels[GANG_NAME_LABEL], []).append(each)
    for members in gangs.values():
        size = int(members[0].metadata.labels["pod-group.scheduling.sigs.k8s.io/min-available"])
        priority = members[0].spec.priority or 0
        staying = [each for each in world.bound() if (each.spec.priority or 0) >= priority]
        held = held_units(staying, None)
        free = sum(units_free == UNITS for units_free in (UNITS - held.get(f"GPU-n-{i}", 0) for i in range(GPUS)))
        assert all(units_of(each) == UNITS for each in members)
        assert len(members) < size or free < size, "a gang waits that others could leave room for"
    await world.calm_down()
    assert len(world.cluster.evicted) == evicted, "who has left stays away, and nobody else has to go"
    assert world.in_part() <= world.unknown, "a gang leaves whole"
    kept = [each for each in world.waiting() if reservation_of(each) is not None]
    assert not kept, "nothing is kept for ever"
