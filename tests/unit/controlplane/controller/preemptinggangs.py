"""A controller that plans gangs for which others leave, and the API server that it writes to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangRound
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.core.devices.allocation import reservation_of
from gputile.kube.errors import AnswerLost, Conflict, NotFound, TooManyRequests
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.fakes.corebuilders import bound
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import NOW, SECOND, Bench, member, node


@dataclass
class Cluster(ApiServerWriter):
    """The API server: it stores at once what is written, and refuses the eviction of some pods.

    It answers nothing about the eviction of those in ``lost``, whether it executes it or not.
    """

    bench: "PreemptingBench"
    pods: dict[str, Pod] = field(default_factory=dict)
    told: dict[str, Pod] = field(default_factory=dict)  # what the controller was told of them
    refused: set[str] = field(default_factory=set)
    lost: dict[str, bool] = field(default_factory=dict)  # whether it is executed
    evicted: list[str] = field(default_factory=list)
    said: list[tuple[str, str, str]] = field(default_factory=list)
    mute: bool = False
    version: int = 10
    prompt: bool = True  # whether the watch tells of what is evicted at once
    on_evict: Callable[[Pod], None] = lambda _: None

    def store(self, changed: Pod) -> Pod:
        self.version += 1
        meta = msgspec.structs.replace(changed.metadata, resource_version=str(self.version))
        stored = self.pods[meta.uid] = msgspec.structs.replace(changed, metadata=meta)
        return stored

    async def reserve(self, asked: Pod, text: str | None, nominated: str | None) -> Pod:
        current = self.pods.get(asked.metadata.uid)
        if self.mute or current is None:
            raise NotFound(404, "NotFound", "no such pod")
        if current.metadata.resource_version != asked.metadata.resource_version:
            raise Conflict(409, "Conflict", "the pod has changed")
        annotations = {key: value for key, value in current.metadata.annotations.items() if key != "gputile.io/hold"}
        annotations |= {"gputile.io/hold": text} if text is not None else {}
        meta = msgspec.structs.replace(current.metadata, annotations=annotations)
        return self._answered(msgspec.structs.replace(current, metadata=meta))

    async def ungate(self, asked: Pod) -> Pod:
        current = self.pods.get(asked.metadata.uid)
        if current is None:
            raise NotFound(404, "NotFound", "no such pod")
        spec = msgspec.structs.replace(current.spec, scheduling_gates=())
        return self._answered(msgspec.structs.replace(current, spec=spec))

    def _answered(self, changed: Pod) -> Pod:
        stored = self.told[changed.metadata.uid] = self.store(changed)
        return stored

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        if uid in self.refused:
            raise TooManyRequests(429, "TooManyRequests", "the budget does not allow it")
        if not self.lost.get(uid, True):
            raise AnswerLost("timed out")
        current = self.pods.get(uid)
        if current is None:
            raise NotFound(404, "NotFound", "no such pod")
        self.on_evict(current)
        self.evicted.append(uid)
        meta = msgspec.structs.replace(current.metadata, deletion_timestamp="2030-03-17T17:47:10Z")
        stored = self.store(msgspec.structs.replace(current, metadata=meta))
        if self.prompt:
            self.bench.watch(stored)
        if uid in self.lost:
            raise AnswerLost("timed out")

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        self.said.append((about.metadata.name, reason, message))


class PreemptingBench(Bench):
    """A node of four GPUs, each with a pod of priority 0; budgets are known."""

    def __init__(
        self, configuration: Configuration | None = None, *, gpus: int = 4, labels: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(gpus=gpus)
        self.view = ClusterState(configuration or Configuration(admission=AdmissionConfiguration(gangs=True)))
        self.planner = GangPlanner(self.view.ledger.configuration, self.new_plan)
        at_once(self.view.node_event(Replaced([node(gpus=gpus)])))
        self.view.budget_event(Replaced([]))
        self.cluster = Cluster(self)
        self.woken = 0  # how often another round was asked for
        self.now_s = float(NOW)
        self.labels = dict(labels or {})  # of the pods of low priority
        for gpu in range(gpus):
            self.low(f"low-{gpu}", gpu)

    def low(self, name: str, gpu: int) -> None:
        low = bound(name, "n", gpu, 3)
        low.metadata.labels = self.labels
        self.watch(self.cluster.store(low))

    def watch(self, stored: Pod) -> None:
        self.cluster.told[stored.metadata.uid] = stored
        at_once(self.view.pod_event(Applied(stored)))

    def comes(self, name: str, count: int, priority: int = 9, policy: str = "", size: int = 0) -> None:
        for i in range(count):
            one = member(name, i, size or count, priority=priority)
            if policy:
                one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, preemption_policy=policy))
            self.watch(self.cluster.store(one))

    def ends(self, *names: str) -> None:
        for name in names:
            self.tell_gone(self.cluster.pods.pop(name))

    def tell_gone(self, gone: Pod) -> None:
        self.cluster.told.pop(gone.metadata.uid, None)
        at_once(self.view.pod_event(Deleted(gone)))

    async def write(self, after: float = 1.0) -> GangRound:
        self.now_s += after
        self.view.set_time(int(self.now_s * SECOND))
        result = self.planner.plan(self.view.snapshot())
        await GangWriter(self.view, self.planner, self.cluster, lambda: True, self.wake).write(result)
        return result

    def wake(self) -> None:
        self.woken += 1

    def reserved(self) -> list[str]:
        return sorted(name for name, each in self.cluster.pods.items() if reservation_of(each) is not None)

    def reasons(self, result: GangRound) -> list[str]:
        return [event.reason for event in result.events]
