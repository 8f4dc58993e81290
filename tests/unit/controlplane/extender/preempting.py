"""A cluster in which pods preempt others: a model of the API server, an extender, a controller, and their clocks."""

import asyncio
import copy
from datetime import UTC, datetime

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, PodCondition, Taint
from gputile.api.webhooks import ExtenderArgs
from gputile.api.well_known import GPU_MEMORY, RESERVATION_ANNOTATION, EventReason
from gputile.api.workloads import PodDisruptionBudget
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder, BindError
from gputile.controlplane.extender.handlers import ExtenderHandlers, PodEvent
from gputile.controlplane.extender.informer import Informer
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent
from tests.fakes.corebuilders import mib_on_gpus
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

GPU_MIB = 15 * 1024
BEGIN_S = 1_800_000_000


class PreemptingExtender:
    """One extender's parts on the API server's pods. ``informer`` is its watch."""

    def __init__(self, world: "PreemptingWorld") -> None:
        self.ledger = Ledger(Configuration())
        for name in world.nodes:
            self.ledger.apply_node(preempting_node(name))
        self.evictable = EvictablePods(self.holds)
        self.informer = Informer(self.ledger, lambda _: None, (self.evictable,))
        at_once(self.informer.listed_pods(Replaced([copy.deepcopy(pod) for pod in world.cluster.pods.values()])))
        engine = PlacementEngine(self.ledger)
        self.binder = Binder(engine, world.cluster, lambda: world.monotonic_s, lambda: world.now_s * 10**9)
        self.handlers = ExtenderHandlers(
            engine,
            self.binder,
            world.events.append,
            lambda: None,
            lambda: world.now_s * 10**9,
            evictable=self.evictable,
        )

    def holds(self, uid: str) -> bool:
        return self.ledger.booking(uid) is not None


class ModelWriter(ApiServerWriter):
    """The controller's writes to the model of the API server."""

    def __init__(self, world: "PreemptingWorld") -> None:
        self._world = world

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        return await self._world.cluster.reserve(pod, text, nominated or "")

    async def ungate(self, pod: Pod) -> Pod:
        raise AssertionError(f"{pod.key} has no gate")

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        await self._world.cluster.evict(namespace, name, uid, why)

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        assert isinstance(about, Pod)
        self._world.events.append(PodEvent(about, warning, EventReason(reason), message))


class PreemptingController:
    """One controller's parts on the API server's pods."""

    def __init__(self, world: "PreemptingWorld") -> None:
        self._world, self._plans = world, 0
        configuration = Configuration()
        self.state = ClusterState(configuration)
        at_once(self.state.node_event(Replaced([preempting_node(name) for name in world.nodes])))
        self.state.budget_event(Replaced([]))
        self.pods(Replaced([copy.deepcopy(pod) for pod in world.cluster.pods.values()]))
        self.planner = GangPlanner(configuration, self._new_plan)

    def _new_plan(self) -> str:
        self._plans += 1
        return f"{id(self)}-{self._plans}"

    def pods(self, event: WatchEvent[Pod]) -> None:
        at_once(self.state.pod_event(event))

    def node(self, node: Node) -> None:
        at_once(self.state.node_event(Applied(node)))

    def budget(self, budget: PodDisruptionBudget) -> None:
        self.state.budget_event(Applied(budget))

    async def round(self) -> None:
        world = self._world
        self.state.set_time(world.now_s * 10**9)
        result = self.planner.plan(self.state.snapshot())
        await GangWriter(self.state, self.planner, ModelWriter(world), lambda: True, lambda: None).write(result)


def preempting_node(name: str) -> Node:
    node = gpu_node(name, mode="cgpu")
    node.status.allocatable = {"cpu": "99", "memory": "99Gi", "pods": "99", GPU_MEMORY: str(2 * GPU_MIB // 1024)}
    return node


class PreemptingWorld:
    """Nodes of two GPUs with 15 GiB each; pods ask for whole GiB. Time passes only where it is told to."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes or ("a",)
        self.now_s = BEGIN_S
        self.monotonic_s = 0
        self.events: list[PodEvent] = []
        self.cluster = ModelCluster(lambda: Fate.OK)
        self.extender = PreemptingExtender(self)
        self.controller = PreemptingController(self)

    def add(self, name: str, gib: int, priority: int = 0) -> Pod:
        pod = gpu_pod(name, gib, priority=priority, uid=f"uid-{name}-{self.cluster.version}")
        self.cluster.add(pod)
        return pod

    def pod(self, name: str) -> Pod | None:
        return self.cluster.pods.get(("default", name))

    def change_node(self, name: str, *taints: Taint, cordoned: bool = False, **labels: str) -> None:
        """Tell all that a node has these taints and labels now, beside its mode."""
        node = preempting_node(name)
        node.spec.taints, node.spec.unschedulable = taints, cordoned
        node.metadata.labels |= labels
        self.extender.informer.nodes(Applied(node))
        self.controller.node(node)

    def watch(self, name: str) -> None:
        pod = self.pod(name)
        if pod is not None:
            self.extender.informer.pods(Applied(copy.deepcopy(pod)))
            self.controller.pods(Applied(copy.deepcopy(pod)))

    def watch_all(self) -> None:
        pods = [copy.deepcopy(pod) for pod in self.cluster.pods.values()]
        at_once(self.extender.informer.listed_pods(Replaced(pods)))
        self.controller.pods(Replaced(copy.deepcopy(pods)))

    def change(self, pod: Pod) -> None:
        self.cluster.touch(pod)
        self.watch(pod.metadata.name)

    def set_budget(self, budget: PodDisruptionBudget) -> None:
        self.extender.evictable.budget_event(Applied(copy.deepcopy(budget)))
        self.controller.budget(copy.deepcopy(budget))

    async def schedule(self, name: str) -> bool:
        """Do what kube-scheduler does with a pod that waits; return whether it is bound."""
        pod = self.pod(name)
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return False
        asked = ExtenderArgs(pod=copy.deepcopy(pod), node_names=list(self.nodes))
        feasible = self.extender.handlers.filter(asked).node_names
        if not feasible:
            if not pod.status.conditions:
                pod.status.conditions = (PodCondition(type="PodScheduled", status="False"),)
                self.cluster.touch(pod)
            self.controller.pods(Applied(copy.deepcopy(pod)))
            return False
        try:
            await self.extender.binder.bind(copy.deepcopy(pod), feasible[0])
        except BindError:
            return False
        return True

    async def run(self, name: str, gib: int, priority: int = 0) -> Pod:
        pod = self.add(name, gib, priority)
        assert await self.schedule(name)
        self.watch(name)
        return pod

    async def round(self, seconds: int = 2) -> None:
        """Let time pass, and the controller do rounds: it reserves GPUs, has pods evicted, and sees what came of it."""
        self.pass_time(seconds)
        await self.extender.binder.resolve_unconfirmed()
        self.extender.ledger.set_time(self.now_s * 10**9)
        for _ in range(3):
            await self.controller.round()
        await asyncio.sleep(0)

    async def seen_round(self, seconds: int = 2) -> None:
        """Do a round of which all are told at once."""
        await self.round(seconds)
        self.watch_all()

    def pass_time(self, seconds: int) -> None:
        self.monotonic_s += seconds
        self.set_clocks(self.now_s + seconds)

    def set_clocks(self, now_s: int) -> None:
        """Set the clocks of all to ``now_s``, which takes no time."""
        self.now_s = now_s
        self.cluster.now = self.stamp(0)

    def stamp(self, seconds: int) -> str:
        """Return when it will be so many seconds from now, as Kubernetes writes it."""
        return datetime.fromtimestamp(self.now_s + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def end(self, name: str, *, seen: bool = True) -> None:
        """Remove a pod, as the kubelet does with one that has ended."""
        pod = self.cluster.pods.pop(("default", name), None)
        if pod is not None and seen:
            self.extender.informer.pods(Deleted(copy.deepcopy(pod)))
            self.controller.pods(Deleted(copy.deepcopy(pod)))

    def replace_leaders(self) -> None:
        """Have another extender and another controller take over: they list the cluster."""
        self.extender = PreemptingExtender(self)
        self.controller = PreemptingController(self)

    def leaving(self) -> set[str]:
        """Return the names of the pods that were asked to leave."""
        return {pod.metadata.name for pod in self.cluster.pods.values() if pod.metadata.deletion_timestamp}

    def bound(self) -> set[str]:
        return {pod.metadata.name for pod in self.cluster.pods.values() if pod.spec.node_name}

    def said(self, reason: str) -> list[str]:
        return [event.message for event in self.events if event.reason == reason]

    def has_reservation(self, name: str) -> bool:
        pod = self.pod(name)
        return pod is not None and RESERVATION_ANNOTATION in pod.metadata.annotations and not pod.spec.node_name

    def check(self) -> None:
        held = mib_on_gpus(self.cluster.pods.values())
        assert all(mib <= GPU_MIB for mib in held.values()), held
