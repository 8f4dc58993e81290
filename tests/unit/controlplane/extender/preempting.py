"""A cluster in which pods preempt others: the model of an API server, an extender beside it, and their clocks."""

import asyncio
import copy
from collections import Counter
from datetime import UTC, datetime

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, Taint
from gputile.api.extender import ExtenderArgs
from gputile.api.well_known import ALLOCATION_ANNOTATION, RESERVATION_ANNOTATION
from gputile.controlplane.evictable_pods import BoundPods, Budgets
from gputile.controlplane.extender.binder import Binder, BinderClock, BindError
from gputile.controlplane.extender.evictions import EvictionSources
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.controlplane.extender.informer import Informer
from gputile.controlplane.extender.pod_api import PodEvent
from gputile.controlplane.extender.preemption import Preemption
from gputile.core.devices.allocation import decode_allocation
from gputile.core.ledger.events import NodeApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

GPU_MIB = 15 * 1024
BEGIN_S = 1_800_000_000


class PreemptingExtender:
    """One extender's parts on the API server's pods. ``informer`` is its watch."""

    def __init__(self, world: "PreemptingWorld") -> None:
        clock = BinderClock(lambda: world.monotonic_s, lambda: world.now_s * 10**9)
        self.ledger = Ledger(Configuration())
        for name in world.nodes:
            self.ledger.apply(NodeApplied(gpu_node(name, mode="cgpu")))
        self.budgets = Budgets(self.holds)
        bound_pods = BoundPods(self.holds)
        self.informer = Informer(self.ledger, lambda _: None, (self.budgets, bound_pods))
        self.informer.pods(Replaced([copy.deepcopy(pod) for pod in world.cluster.pods.values()]))
        engine = PlacementEngine(self.ledger)
        self.binder = Binder(engine, world.cluster, clock)
        sources = EvictionSources(bound_pods, self.budgets)
        self.preemption = Preemption(engine, world.cluster, sources, clock, world.events.append)
        self.handlers = ExtenderHandlers(
            engine, self.binder, world.events.append, lambda: None, clock.unix_ns, preemption=self.preemption
        )

    def holds(self, uid: str) -> bool:
        """Return whether the ledger has a booking of a pod."""
        return self.ledger.booking(uid) is not None


class PreemptingWorld:
    """Nodes of two GPUs with 15 GiB each; pods ask for whole GiB. Time passes only where it is told to."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes or ("a",)
        self.now_s = BEGIN_S
        self.monotonic_s = 0
        self.events: list[PodEvent] = []
        self.cluster = ModelCluster(lambda: Fate.OK)
        self.extender = PreemptingExtender(self)

    def add(self, name: str, gib: int, priority: int = 0) -> Pod:
        """Create a pod that waits."""
        pod = gpu_pod(name, gib, priority=priority, uid=f"uid-{name}-{self.cluster.version}")
        self.cluster.add(pod)
        return pod

    def pod(self, name: str) -> Pod | None:
        """Return a pod as the API server has it."""
        return self.cluster.pods.get(("default", name))

    def change_node(self, name: str, *taints: Taint, cordoned: bool = False, **labels: str) -> None:
        """Tell the extender that a node has these taints and labels now, beside its mode."""
        node = gpu_node(name, mode="cgpu")
        node.spec.taints, node.spec.unschedulable = taints, cordoned
        node.metadata.labels |= labels
        self.extender.informer.nodes(Applied(node))

    def watch(self, name: str) -> None:
        """Tell the extender of a pod."""
        pod = self.pod(name)
        if pod is not None:
            self.extender.informer.pods(Applied(copy.deepcopy(pod)))

    def watch_all(self) -> None:
        """Have the extender list the pods."""
        self.extender.informer.pods(Replaced([copy.deepcopy(pod) for pod in self.cluster.pods.values()]))

    async def schedule(self, name: str) -> bool:
        """Do what kube-scheduler does with a pod that waits; return whether it is bound."""
        pod = self.pod(name)
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return False
        asked = ExtenderArgs(pod=copy.deepcopy(pod), node_names=list(self.nodes))
        feasible = self.extender.handlers.filter(asked).node_names
        if not feasible:
            return False
        try:
            await self.extender.binder.bind(copy.deepcopy(pod), feasible[0])
        except BindError:
            return False
        return True

    async def run(self, name: str, gib: int, priority: int = 0) -> Pod:
        """Create a pod, and have it bound and seen."""
        pod = self.add(name, gib, priority)
        assert await self.schedule(name)
        self.watch(name)
        return pod

    async def round(self, seconds: int = 2) -> None:
        """Let time pass, and the extender do a round."""
        self.pass_time(seconds)
        await self.extender.binder.resolve_unconfirmed()
        await self.extender.preemption.round()
        await asyncio.sleep(0)

    def pass_time(self, seconds: int) -> None:
        """Let so much time pass for all."""
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

    def replace_extender(self) -> None:
        """Have another extender take over: it lists the cluster."""
        self.extender = PreemptingExtender(self)

    def leaving(self) -> set[str]:
        """Return the names of the pods that were asked to leave."""
        return {pod.metadata.name for pod in self.cluster.pods.values() if pod.metadata.deletion_timestamp}

    def bound(self) -> set[str]:
        """Return the names of the pods that have a node."""
        return {pod.metadata.name for pod in self.cluster.pods.values() if pod.spec.node_name}

    def said(self, reason: str) -> list[str]:
        """Return the messages of the events with a reason."""
        return [event.message for event in self.events if event.reason == reason]

    def has_reservation(self, name: str) -> bool:
        """Return whether a pod has a reservation in the API server."""
        pod = self.pod(name)
        return pod is not None and RESERVATION_ANNOTATION in pod.metadata.annotations and not pod.spec.node_name

    def check(self) -> None:
        """Assert that no GPU is given away twice."""
        held: Counter[str] = Counter()
        for pod in self.cluster.pods.values():
            if pod.spec.node_name:
                for share in decode_allocation(pod.metadata.annotations[ALLOCATION_ANNOTATION]).gpus:
                    held[share.uuid] += share.mib
        assert all(mib <= GPU_MIB for mib in held.values()), held
