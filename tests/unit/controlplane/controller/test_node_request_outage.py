"""Against a model of a whole cluster over hours: as many nodes are bought as are needed, also by a cloud with none.

It goes by what users of kube-scheduler, an autoscaler and a cloud see: the autoscaler knows pods that kube-scheduler
refused and placeholders, puts them on nodes that are there or on their way, and buys a node for those that fit none. It
gives nothing up that it has bought, and takes no node away. As Karpenter does, it expects of each node all that is
described, however long it has not come, and puts pods first on those where it has.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, KARPENTER_POOL_LABEL
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.node_type import is_placeholder
from tests.conftest import examples
from tests.fakes.corebuilders import allocation_text, share
from tests.fakes.corebuilders import pod as pod_of
from tests.unit.controlplane.controller.test_node_request_planner import TYPE, WAIT, Bench, node, tolerant_member, waits

pytestmark = pytest.mark.requirement("U8", "B5")


UNITS = 15  # of each of a node's two GPUs
GPUS = 2


@dataclass
class Machine:
    """A node as everybody knows it: what is free on its GPUs, and since when it is there and reports GPUs (s)."""

    name: str
    joins: float
    reports: float
    free: list[int] = field(default_factory=lambda: [UNITS] * GPUS)
    empty: bool = True
    joined: bool = False
    reported: bool = False


@dataclass
class Weather:
    """When the cloud has no nodes, from and until in seconds, and how long one takes to join, and then to report.

    The first ``bare`` nodes never report, and stay.
    """

    outages: Sequence[tuple[float, float]] = ()
    joins_in: float = 60
    reports_in: float = 30
    bare: int = 0

    def sells(self, now: float) -> bool:
        return not any(begin <= now < end for begin, end in self.outages)


class ModelCloud:
    """Time goes by in steps; ``machines`` are the nodes, and ``bought`` says how many the autoscaler has added."""

    def __init__(self, bench: Bench, weather: Weather, *, oldest_first: bool = False) -> None:
        self.bench, self.weather = bench, weather
        self.machines: dict[str, Machine] = {}
        self.bought = 0
        self.now = 0.0
        self.said: list[tuple[float, str, str, str]] = []
        self._oldest_first = oldest_first
        self._version = 100

    def has(self, name: str, free: Sequence[int]) -> None:
        """Have a node with so much free on its GPUs from the start; pods of others hold the rest."""
        machine = self.machines[name] = Machine(name, 0, 0, list(free), all(each == UNITS for each in free))
        machine.joined = machine.reported = True
        self.bench.join(node(name, type_=TYPE))
        for gpu, left in enumerate(free):
            if left < UNITS:
                self._bind(pod_of(f"{name}-{gpu}", mem=UNITS - left), name, gpu)

    def run(self, until: float, step: float = 50) -> None:
        while self.now < until and (not self.now or self.unplaced() or self.bench.waiting.placeholders):
            self.now += step
            self._nodes_come()
            for _ in range(2):  # a round reserves, and the next one starts; they come more often than those for nodes
                self.bench.plan_gangs(self.now)
                if self.bench.gates:
                    self.bench.request(self.now)  # in the same round
                self._schedule()
                self._scale()
            self.said += [
                (self.now, event.pods[0].metadata.name, str(event.reason), event.message)
                for event in self.bench.round(self.now).events
            ]
            self._schedule()
            self._scale()

    def unplaced(self) -> list[str]:
        gangs = [pod.metadata.name for pod in self._gang_pods()]
        return sorted([pod.metadata.name for pod in self.bench.waiting.refused.values()] + gangs)

    # -- nodes

    def _nodes_come(self) -> None:
        for machine in self.machines.values():
            if not machine.joined and machine.joins <= self.now:
                machine.joined = True
                joining = node(machine.name, type_=TYPE, gpus=0)
                joining.metadata.labels[KARPENTER_POOL_LABEL] = "gpu"
                self.bench.join(joining)
                self.bench.round(self.now)  # a node that joins wakes the controller
            if machine.joined and not machine.reported and machine.reports <= self.now:
                machine.reported = True
                self.bench.join(node(machine.name, type_=TYPE))

    # -- kube-scheduler and the extender

    def _schedule(self) -> None:
        for waiting in sorted(self.bench.waiting.refused.values(), key=_age):
            for machine in self.machines.values():
                gpu = next((i for i, free in enumerate(machine.free) if free >= units(waiting)), None)
                if machine.reported and gpu is not None:
                    self._bind(waiting, machine.name, gpu)
                    machine.free[gpu] -= units(waiting)
                    machine.empty = False
                    break
        starting = self.bench.gates  # deleted placeholders are gone at once here
        for pod in starting:
            reservation = reservation_of(pod)
            assert reservation is not None
            assert reservation.allocation is not None
            gpu = int(reservation.allocation.gpus[0].uuid.rpartition("-")[2])
            machine = self.machines[reservation.node]
            machine.free[gpu] -= units(pod)
            machine.empty = False
            assert machine.free[gpu] >= 0
            self._bind(pod, reservation.node, gpu)
        if starting:
            self.bench.gates = []

    def _gangs(self) -> list[list[Pod]]:
        members = self.bench.state.members
        found = [[pod for pod in members.pods(name) if not pod.spec.node_name] for name in members.waiting()]
        return [pods for pods in found if pods]

    def _gang_pods(self) -> Iterable[Pod]:
        return (pod for pods in self._gangs() for pod in pods)

    def _bind(self, bound: Pod, name: str, gpu: int) -> None:
        self._version += 1
        text = allocation_text(share(f"GPU-{name}-{gpu}", units(bound) * 1024))
        meta = msgspec.structs.replace(
            bound.metadata, annotations={ALLOCATION_ANNOTATION: text}, resource_version=str(self._version)
        )
        spec = msgspec.structs.replace(bound.spec, node_name=name, scheduling_gates=())
        self.bench.put(msgspec.structs.replace(bound, metadata=meta, spec=spec))

    # -- the autoscaler

    def _scale(self) -> None:
        """Buy a node for what fits none of those that are there or bought, the largest pods first."""
        machines = sorted(self.machines.values(), key=lambda each: not each.reported)
        free = {machine.name: (sum(machine.free), machine.empty) for machine in machines}
        new: list[tuple[int, bool]] = []
        seen = [*self.bench.waiting.refused.values(), *self.bench.waiting.placeholders.values()]
        for pod in sorted(seen, key=_age if self._oldest_first else lambda each: (-units(each), *_age(each))):
            asked = units(pod)
            name = next((name for name, each in free.items() if _takes(each, pod)), None)
            if name is not None:
                free[name] = free[name][0] - asked, False
                continue
            i = next((i for i, each in enumerate(new) if _takes(each, pod)), None)
            if i is not None:
                new[i] = new[i][0] - asked, False
            else:
                new.append((UNITS * GPUS - asked, False))
        if self.weather.sells(self.now):
            for _ in new:
                self.bought += 1
                joins = self.now + self.weather.joins_in
                name = f"new-{self.bought}"
                reports = joins + self.weather.reports_in if self.bought > self.weather.bare else math.inf
                self.machines[name] = Machine(name, joins, reports)


def _takes(free: tuple[int, bool], pod: Pod) -> bool:
    """Return whether a node takes a pod in the eyes of one who sees sums; ``free``: what it has, and whether empty."""
    left, empty = free
    return left >= units(pod) and (empty or not is_placeholder(pod))


def units(pod: Pod) -> int:
    limits = pod.spec.containers[0].resources.limits
    return int(limits[GPU_MEMORY])


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


LONGEST = 3 * 3600  # until the last pod has its place: outage, pause and the next attempt


def like(count: int, units: int) -> list[Pod]:
    return [waits(f"p{i:02}", mem=units) for i in range(count)]


@settings(max_examples=examples(5), deadline=None)
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


@settings(max_examples=examples(5), deadline=None)
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


@settings(max_examples=examples(5), deadline=None)
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
