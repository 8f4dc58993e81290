"""One node's API server and scheduler in memory: pods are bound by the real placement, and news can lag behind."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Node, NodeCondition, ObjectMeta, ObjectReference, Pod
from gputile.core.devices.request import parse_request
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import Refusal
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.errors import Conflict, ConnectionFailed
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent
from gputile.node.agent.api_server import NodeApi

NODE = "n"


class FakeCluster(NodeApi):
    """``lag`` seconds pass before the agent hears of a change; the kubelet hears at once. ``down``: nothing answers.

    ``offered`` is what the node's status says that pods may take, by resource: kube-scheduler goes by that too.
    """

    def __init__(self, configuration: Configuration | None = None, labels: Mapping[str, str] | None = None) -> None:
        self.configuration = configuration or Configuration()
        self.node = Node(metadata=ObjectMeta(name=NODE, uid="node", labels=dict(labels or {})))
        self.pods: dict[str, Pod] = {}
        self.events: list[tuple[str, str, str]] = []
        self.lag = 0.0
        self.down = False
        self.reads = 0
        self.patches = 0
        self.waiting: deque[Pod] = deque()
        self.offered: dict[str, int] = {}
        self.ledger = Ledger(self.configuration)
        self.engine = PlacementEngine(self.ledger)
        self.on_pods: Callable[[WatchEvent[Pod]], None] = lambda event: None
        self.on_node: Callable[[WatchEvent[Node]], None] = lambda event: None
        self.on_bound: Callable[[Pod], None] = lambda pod: None
        self.on_gone: Callable[[str], None] = lambda uid: None
        self._version = 1
        self._uids = 0
        self._devices: dict[str, dict[str, int]] = {}  # what each pod asks for of device plugins
        self._news: deque[tuple[float, Callable[[], None]]] = deque()
        self._delivering: asyncio.Task[None] | None = None

    # -- people

    def create(self, pod: Pod, *, node: str = "", static: bool = False) -> Pod:
        """Create a pod; it is bound as soon as it fits. ``node`` binds it by hand, without a booking."""
        assert pod.key not in self.pods, f"{pod.key} exists"
        self._uids += 1
        meta = msgspec.structs.replace(
            pod.metadata, uid=f"uid-{self._uids}", creation_timestamp=f"2026-01-01T00:00:00.{self._uids:06d}Z"
        )
        pod = msgspec.structs.replace(pod, metadata=meta)
        asked = pod_requests(pod.spec)
        self._devices[meta.uid] = {name: amount for name, amount in asked.items() if "/" in name}
        if node or static:
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=NODE))
            self.store(pod)
            self.on_bound(pod)
        else:
            self.store(pod)
            self.waiting.append(pod)
            self.schedule()
        return pod

    def delete(self, key: str) -> None:
        """Delete by force: the object is gone at once."""
        pod = self.pods.pop(key)
        self.waiting = deque(p for p in self.waiting if p.metadata.uid != pod.metadata.uid)
        self.ledger.remove_pod(pod.metadata.uid)
        self._tell(lambda: self.on_pods(Deleted(pod)))
        self.on_gone(pod.metadata.uid)
        self.schedule()

    def label(self, **labels: str | None) -> None:
        changed = {**self.node.metadata.labels}
        for key, value in labels.items():
            if value is None:
                changed.pop(key, None)
            else:
                changed[key] = value
        self._put_node(msgspec.structs.replace(self.node.metadata, labels=changed), self.node.status.conditions)

    def relabel(self, labels: Mapping[str, str]) -> None:
        self._put_node(msgspec.structs.replace(self.node.metadata, labels=dict(labels)), self.node.status.conditions)

    def condition(self, kind: str) -> NodeCondition:
        return next((c for c in self.node.status.conditions if c.type == kind), NodeCondition(type=kind))

    # -- kube-scheduler with gputile's extender

    def report(self, resource: str, amount: int) -> None:
        """The kubelet says how much of a resource it has. It says so late of devices that it has lost, and not here."""
        if self.offered.get(resource) != amount:
            self.offered[resource] = amount
            self.schedule()

    def asked(self) -> dict[str, int]:
        """What the pods ask for that are bound to the node, by resource."""
        total: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.spec.node_name and not pod.finished:
                for resource, amount in self._devices[pod.metadata.uid].items():
                    total[resource] = total.get(resource, 0) + amount
        return total

    def schedule(self) -> None:
        asked = self.asked() if self.waiting else {}
        for _ in range(len(self.waiting)):
            pod = self.waiting.popleft()
            devices = self._devices[pod.metadata.uid]
            if any(asked.get(name, 0) + amount > self.offered.get(name, 0) for name, amount in devices.items()):
                self.waiting.append(pod)
                continue
            request = parse_request(pod, self.configuration.unit_mib, self.configuration.trust_group)
            annotations: dict[str, str] = {}
            if request is not None:
                decision = self.engine.decide(request, NODE, self._version)
                if isinstance(decision, Refusal):
                    self.waiting.append(pod)
                    continue
                annotations = decision.annotations(pod)
            meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
            bound = Pod(metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=NODE), status=pod.status)
            bound = self.store(bound)
            asked |= {name: asked.get(name, 0) + amount for name, amount in devices.items()}
            self.on_bound(bound)

    # -- the kubelet

    def status(self, uid: str, phase: str, reason: str) -> None:
        pod = next((p for p in self.pods.values() if p.metadata.uid == uid), None)
        if pod is not None:
            self.store(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase)))
            if phase in ("Failed", "Succeeded"):
                self.schedule()

    # -- the agent's calls

    def connect(self, on_pods: Callable[[WatchEvent[Pod]], None], on_node: Callable[[WatchEvent[Node]], None]) -> None:
        """A new agent's watches: a list first."""
        self.on_pods, self.on_node = on_pods, on_node
        self._news.clear()
        on_node(Replaced([self.node]))
        on_pods(Replaced([pod for pod in self.pods.values() if pod.spec.node_name == NODE]))

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        await self._answer()
        self.reads += 1
        return self.pods.get(f"{namespace}/{name}")

    async def bound_pods(self) -> list[Pod]:
        await self._answer()
        return [pod for pod in self.pods.values() if pod.spec.node_name == NODE]

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        await self._answer()
        held = self.pods.get(pod.key)
        if held is None or held.metadata.uid != pod.metadata.uid:
            raise Conflict(409, "Conflict", "another pod")
        if held.metadata.resource_version != pod.metadata.resource_version:
            raise Conflict(409, "Conflict", "it has changed")
        return self.annotated(held, annotations)

    def annotated(self, held: Pod, annotations: Mapping[str, str | None]) -> Pod:
        self.patches += 1
        merged = {**held.metadata.annotations, **annotations}
        left = {key: value for key, value in merged.items() if value is not None}
        return self.store(
            msgspec.structs.replace(held, metadata=msgspec.structs.replace(held.metadata, annotations=left))
        )

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        await self._answer()
        self.patch_node_now(patch)

    def patch_node_now(self, patch: Mapping[str, Any]) -> None:
        meta = self.node.metadata
        labels = {**meta.labels, **patch.get("metadata", {}).get("labels", {})}
        annotations = {**meta.annotations, **patch.get("metadata", {}).get("annotations", {})}
        conditions = {c.type: c for c in self.node.status.conditions}
        for entry in patch.get("status", {}).get("conditions", []):
            if entry.get("$patch") == "delete":
                conditions.pop(entry["type"], None)
                continue
            conditions[entry["type"]] = msgspec.convert(entry, NodeCondition)
        self._put_node(
            msgspec.structs.replace(
                meta,
                labels={k: v for k, v in labels.items() if v is not None},
                annotations={k: v for k, v in annotations.items() if v is not None},
            ),
            tuple(conditions.values()),
        )

    def record(
        self, about: ObjectReference, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self.events.append((f"{about.kind} {about.name}", reason, message))

    async def _answer(self) -> None:
        await asyncio.sleep(0.001)
        if self.down:
            raise ConnectionFailed("the API server is away")

    # -- within

    def store(self, pod: Pod) -> Pod:
        self._version += 1
        meta = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        pod = msgspec.structs.replace(pod, metadata=meta)
        self.pods[pod.key] = pod
        self.ledger.apply_pod(pod)
        if pod.spec.node_name:
            self._tell(lambda: self.on_pods(Applied(pod)))
        return pod

    def _put_node(self, meta: ObjectMeta, conditions: tuple[NodeCondition, ...]) -> None:
        self._version += 1
        meta = msgspec.structs.replace(meta, resource_version=str(self._version))
        status = msgspec.structs.replace(self.node.status, conditions=conditions)
        self.node = node = msgspec.structs.replace(self.node, metadata=meta, status=status)
        self.ledger.apply_node(node)
        self._tell(lambda: self.on_node(Applied(node)), "node")
        self.schedule()

    def _tell(self, news: Callable[[], None], about: Literal["node", "pods"] = "pods") -> None:
        """Deliver in order, ``lag`` seconds later."""
        loop = asyncio.get_running_loop()
        self._news.append((loop.time() + self.lag, news))
        if self._delivering is None or self._delivering.done():
            self._delivering = loop.create_task(self._deliver())

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while self._news:
            due, news = self._news[0]
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
                continue
            self._news.popleft()
            news()


def simple_pod(
    name: str,
    *containers: Container,
    namespace: str = "default",
    init: tuple[Container, ...] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    pod = Pod(
        metadata=ObjectMeta(
            name=name, namespace=namespace, labels=dict(labels or {}), annotations=dict(annotations or {})
        )
    )
    spec = msgspec.structs.replace(pod.spec, containers=list(containers), init_containers=list(init))
    return msgspec.structs.replace(pod, spec=spec)
