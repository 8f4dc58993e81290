"""A cluster over hours: kube-scheduler, an autoscaler that adds up what pods ask of nodes, and a cloud that has none.

It goes by what users of all of these see: the autoscaler knows pods that kube-scheduler refused and placeholders, puts
them on nodes that are there or on their way, and buys a node for those that fit none. It gives nothing up that it has
bought, and takes no node away. As Karpenter does, it expects of each node all that is described, however long it
has not come, and puts pods first on those where it has.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, KARPENTER_POOL_LABEL
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.reservation import reservation_of
from tests.corebuilders import allocation_text, share
from tests.corebuilders import pod as pod_of
from tests.unit.controlplane.controller.test_node_request_planner import TYPE, Bench, node

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

    def run(self, until: float, step: float = 20) -> None:
        while self.now < until:
            self.now += step
            self._nodes_come()
            for _ in range(2):  # a round reserves, and the next one starts; they come more often than those for nodes
                self.bench.plan_gangs(self.now)
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
        return sorted([pod.metadata.name for pod in self.bench.waiting.waiting.values()] + gangs)

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
        for waiting in sorted(self.bench.waiting.waiting.values(), key=_age):
            for machine in self.machines.values():
                gpu = next((i for i, free in enumerate(machine.free) if free >= units(waiting)), None)
                if machine.reported and gpu is not None:
                    self._bind(waiting, machine.name, gpu)
                    machine.free[gpu] -= units(waiting)
                    machine.empty = False
                    break
        starting = self.bench.gates if not self.bench.planner.in_the_way() else []
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
        seen = [*self.bench.waiting.waiting.values(), *self.bench.waiting.placeholders.values()]
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
