"""Runs the controller's handlers for ``loop_holds``: for events, complete lists and planning."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from tests.fakes.coroutines import at_once

from benchmarks.clusters import bound_pods, filled, gpu_node, gpu_pod
from benchmarks.loop_holds import Case, LoopMeter
from gputile.api.affinity import Affinity
from gputile.api.config.autoscaling import (
    AutoscalingConfiguration,
    NodeTypeConfiguration,
    NodeTypeGpus,
)
from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod, PodCondition, SchedulingGate, Toleration
from gputile.api.well_known import (
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    RESERVATION_ANNOTATION,
    WHOLE_GPU,
    Mode,
)
from gputile.controlplane.controller.api_server import ApiServerWriter, JsonPatch
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.controller import Controller, ControllerSettings
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.controller.node_reconciler import NodeReconciler
from gputile.controlplane.controller.node_request_planner import NodeRequestPlanner
from gputile.controlplane.controller.placeholders import Placeholders
from gputile.controlplane.controller.rounds import Rounds
from gputile.controlplane.event_loop import yielding_to_loop
from gputile.kube.errors import Conflict
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent

NODES, PODS, GANGS, LARGE, WAITING = 5_000, 50_000, 1_000, 2_000, 10_000
ALL_UNITS = 8 * 15
NOW = 1_900_000_000 * 10**9
Drive = Callable[["Bench", LoopMeter], Awaitable[None]]


def cases() -> Iterator[Case]:
    """Yield the controller's handlers, each on its own cluster with the same objects."""
    nodes, pods = objects(NODES, PODS)

    def case(what: str, drive: Drive) -> Case:
        async def run(meter: LoopMeter) -> None:
            await drive(Bench(nodes, pods), meter)

        return Case(f"controller: {what}", run)

    yield case(f"a list of {NODES} nodes and {PODS} pods", _lists)
    yield case("a pod changes, ends, and is gone", _pod_events)
    yield case("a node changes, goes, and comes, then a round", _node_events)
    yield case(f"a gang of {LARGE} pods is planned and written", _one_large)
    yield case(f"a gang of {LARGE} that differ in a label", _one_large_of_many)
    yield case(f"a gang of {LARGE} pods that repel each other", _one_large_that_repels)
    yield case(f"{GANGS} gangs that fit", _many_that_fit)
    yield case(f"{GANGS} gangs without room", _many_without_room)
    yield case(f"a gang of {LARGE} whose first write meets a conflict", _one_large_in_conflict)
    yield case(f"a gang of {LARGE} that others leave for", _one_large_that_preempts)
    yield case(f"{NODES} nodes are looked at by a new leader", _reconsidered)
    yield case(f"{WAITING} waiting pods ask for nodes", _node_requests)
    yield case("/metrics is read", _scrape)


class Bench:
    """The state of a controller for a cluster, and the planners that use this state."""

    def __init__(self, nodes: list[Node], pods: list[Pod]) -> None:
        self.nodes, self.pods = nodes, pods
        self.view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
        self._plans = 0
        self.planner = GangPlanner(self.view.ledger.configuration, self.new_plan)
        self.rounds = self.rounds_on(_Server())

    def rounds_on(self, server: "_Server") -> Rounds:
        """Return the planning rounds for gangs. They write to ``server``."""
        writer = GangWriter(self.view, self.planner, server, lambda: True, lambda: None)
        return Rounds(self.view, (self.planner, writer), None, lambda: True, lambda: NOW)

    def new_plan(self) -> str:
        """Return the name of a new plan."""
        self._plans += 1
        return str(self._plans)

    async def list(self) -> None:
        """Apply the lists that a service starts with, and run one round."""
        await self.view.node_event(Replaced(self.nodes))
        await self.view.pod_event(Replaced(self.pods))
        gc.freeze()  # The controller does the same.
        await self.rounds.run_round()


class _Server(ApiServerWriter):
    """An API server that accepts all writes.

    Its responses about pods arrive in a later step of the event loop.
    """

    def __init__(self) -> None:
        self.nodes_patched = 0

    async def patch_node(self, name: str, patch: JsonPatch) -> None:
        self.nodes_patched += 1

    async def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        pass

    async def create_placeholder(self, job: Mapping[str, Any]) -> None:
        pass

    async def delete_placeholder(self, job: str) -> None:
        pass

    async def mark_unschedulable(self, pod: Pod, message: str) -> None:
        pass

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        await asyncio.sleep(0)
        annotations = {
            key: value
            for key, value in pod.metadata.annotations.items()
            if key != RESERVATION_ANNOTATION
        }
        annotations |= {RESERVATION_ANNOTATION: text} if text is not None else {}
        return _newer(pod, annotations=annotations)

    async def ungate(self, pod: Pod) -> Pod:
        await asyncio.sleep(0)
        return msgspec.structs.replace(
            _newer(pod), spec=msgspec.structs.replace(pod.spec, scheduling_gates=())
        )

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        await asyncio.sleep(0)

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        pass


async def _lists(bench: Bench, meter: LoopMeter) -> None:
    with meter.watching():
        await _begun(bench.list)


async def _pod_events(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()

    def news() -> Iterator[WatchEvent[Pod]]:
        for pod in bench.pods[:1000]:
            ended = msgspec.structs.replace(pod.status, phase="Succeeded")
            yield Applied(_newer(pod))
            yield Applied(msgspec.structs.replace(_newer(pod), status=ended))
            yield Deleted(pod)

    async def hear() -> None:
        async for event in yielding_to_loop(news()):
            await bench.view.pod_event(event)

    with meter.watching():
        await _begun(hear)


async def _node_events(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    add_gang(bench, "waiting", 2, ALL_UNITS)
    cordoned = bench.nodes[0]
    cordoned = msgspec.structs.replace(
        cordoned, spec=msgspec.structs.replace(cordoned.spec, unschedulable=True)
    )
    with meter.watching():
        for event in (Applied(cordoned), Deleted(cordoned), Applied(bench.nodes[0])):
            await bench.view.node_event(event)
            await _begun(bench.rounds.run_round)


async def _one_large(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    add_gang(bench, "large", LARGE, 1)
    await _rounds(bench, meter)


async def _one_large_of_many(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    add_gang(bench, "large", LARGE, 1, numbered=True)
    await _rounds(bench, meter)


async def _one_large_that_repels(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    add_gang(bench, "large", LARGE, 1, affinity=_REPELS)
    await _rounds(bench, meter)


async def _one_large_in_conflict(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    add_gang(bench, "large", LARGE, 1)
    bench.rounds = bench.rounds_on(_ConflictingServer())
    with meter.watching():
        await _begun(bench.rounds.run_round)


class _ConflictingServer(_Server):
    """An API server that answers each write of a reservation with a conflict."""

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        raise Conflict(409, "Conflict", f"{pod.key} has changed")


async def _one_large_that_preempts(bench: Bench, meter: LoopMeter) -> None:
    """Plan a gang whose pods each request all GPUs of a node, while no node is empty."""
    await bench.list()
    bench.view.budget_event(Replaced([]))
    add_gang(bench, "large", LARGE, ALL_UNITS, gpus=8, priority=1000)
    await _rounds(bench, meter)


async def _reconsidered(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    with meter.watching():
        await taken_over(bench)


async def taken_over(bench: Bench) -> None:
    """Reconcile all nodes, as a new leader does."""
    configuration = bench.view.ledger.configuration
    server = _Server()
    nodes = NodeReconciler(server, configuration, bench.view.nodes.get, lambda: True, lambda: 0.0)
    working = asyncio.create_task(nodes.queue.run())
    await asyncio.sleep(0)

    async def take_over() -> None:
        for name in bench.view.nodes:
            nodes.queue.add(name)
        while server.nodes_patched < len(bench.view.nodes):
            await asyncio.sleep(0)

    await _begun(take_over)
    working.cancel()


async def _node_requests(bench: Bench, meter: LoopMeter) -> None:
    kinds = tuple(
        NodeTypeConfiguration(
            label=f"pool=p{number}", gpus=NodeTypeGpus(count=8, memory="15Gi"), mode=Mode.CGPU
        )
        for number in range(20)
    )
    configuration = Configuration(
        autoscaling=AutoscalingConfiguration(enabled=True, node_types=kinds)
    )
    bench.view = ClusterState(configuration)
    bench.planner = GangPlanner(configuration, bench.new_plan)
    await bench.view.node_event(Replaced(bench.nodes))
    await bench.view.pod_event(Replaced(bench.pods))
    wait_seconds = configuration.autoscaling.wait_seconds
    placeholders = Placeholders(
        _Server(), lambda: bench.view.waiting.placeholders, wait_seconds, bench.new_plan
    )
    requests = NodeRequestPlanner(configuration, bench.planner, placeholders), placeholders
    rounds = Rounds(bench.view, None, requests, lambda: True, lambda: NOW)

    async def ask() -> None:
        requests = (await rounds.run_round()).requests
        assert requests is not None
        assert requests.events

    listed = Replaced([*bench.pods, *map(_refused, range(WAITING))])
    with meter.watching():
        await _begun(lambda: bench.view.pod_event(listed))
        await _begun(ask)


def _refused(number: int) -> Pod:
    """Return a pod that requests all GPUs of a node and has been unschedulable for a long time."""
    pod = gpu_pod(PODS + number, ALL_UNITS)
    labels, born = {GPU_COUNT_LABEL: "8"}, "2030-03-17T17:00:00Z"
    meta = msgspec.structs.replace(pod.metadata, labels=labels, creation_timestamp=born)
    status = msgspec.structs.replace(
        pod.status, conditions=(PodCondition(type="PodScheduled", status="False"),)
    )
    spec = msgspec.structs.replace(
        pod.spec, tolerations=(Toleration(key=WHOLE_GPU, operator="Exists"),)
    )
    return msgspec.structs.replace(pod, metadata=meta, spec=spec, status=status)


async def _many_that_fit(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    for number in range(GANGS):
        add_gang(bench, f"g{number}", 2, 1)
    await _rounds(bench, meter)


async def _many_without_room(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    for number in range(GANGS):
        add_gang(bench, f"g{number}", 2, ALL_UNITS)
    await _rounds(bench, meter)


async def _scrape(bench: Bench, meter: LoopMeter) -> None:
    connection: Any = None  # not used, because nothing is sent
    settings = ControllerSettings("bench", "bench", "bench")
    controller = Controller(connection, bench.view.ledger.configuration, settings)
    await controller.cluster_state.node_event(Replaced(bench.nodes))
    await controller.cluster_state.pod_event(Replaced(bench.pods))

    async def read() -> None:
        answer = await controller.app(make_mocked_request("GET", "/metrics"))
        assert isinstance(answer, web.Response)
        assert "gputile_controller_gangs" in (answer.text or "")

    with meter.watching():
        await _begun(read)


async def _rounds(bench: Bench, meter: LoopMeter) -> None:
    """Run three rounds: one that plans and writes, one that removes the gates, and one without
    work.
    """
    with meter.watching():
        for _ in range(3):
            await _begun(bench.rounds.run_round)


async def _begun(work: Callable[[], Awaitable[object]]) -> None:
    """Start ``work`` in a new callback, so that the meter measures all of it."""
    await asyncio.sleep(0)
    await work()
    await asyncio.sleep(0)


_REPELS = msgspec.convert(
    {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"app": "none"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    },
    type=Affinity,
)


def add_gang(
    bench: Bench,
    name: str,
    size: int,
    units: int,
    *,
    numbered: bool = False,
    gpus: int = 1,
    **spec: object,
) -> None:
    """Create a gang of ``size`` pods. Each requests ``units`` of memory, divided among ``gpus``.

    If ``numbered``, the pods differ in a label.
    """
    for number in range(size):
        pod = gpu_pod(number, units)
        labels = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: str(size), GPU_COUNT_LABEL: str(gpus)}
        labels |= {"index": str(number)} if numbered else {}
        meta = msgspec.structs.replace(
            pod.metadata,
            name=f"{name}-{number}",
            uid=f"{name}-{number}",
            labels=labels,
            resource_version="1",
            creation_timestamp="2030-03-17T17:46:40Z",
        )
        gates = (SchedulingGate(name=GANG_GATE),)
        changed = msgspec.structs.replace(pod.spec, scheduling_gates=gates, **spec)
        at_once(
            bench.view.pod_event(Applied(msgspec.structs.replace(pod, metadata=meta, spec=changed)))
        )


def objects(nodes: int, pods: int) -> tuple[list[Node], list[Pod]]:
    """Return nodes with eight GPUs, and the small pods that are bound to them."""
    engine, _ = filled(nodes, pods)
    return [_shared_node(number) for number in range(nodes)], list(bound_pods(engine.ledger))


def _shared_node(number: int) -> Node:
    node = gpu_node(number)
    labels = node.metadata.labels | {"kubernetes.io/hostname": node.metadata.name}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU_MEMORY: str(ALL_UNITS)}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=labels),
        status=msgspec.structs.replace(node.status, allocatable=amounts),
    )


def _newer(pod: Pod, **changes: Any) -> Pod:
    version = str(int(pod.metadata.resource_version) + 1)
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=version, **changes)
    )
