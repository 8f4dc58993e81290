"""Runs the extender's handlers for ``loop_holds``: for events, lists, requests and new prices."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.clusters import GPUS, UNIT_MIB, booking_for, bound_pods, filled, gpu_node, gpu_pod
from benchmarks.loop_holds import Case, LoopMeter
from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Binding, Node, Pod
from gputile.api.webhooks import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderPreemptionArgs,
    MetaVictims,
)
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    RESERVATION_ANNOTATION,
)
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.controlplane.extender.informer import Informer
from gputile.core.devices.allocation import Reservation, encode_allocation, encode_reservation
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.packing_scores import build
from gputile.core.placement.prices import prices
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced

NODES, PODS, LARGE = 5_000, 50_000, 2_000
_ENDS_NS = 10**18
_UNITS = 16  # memory units of each GPU on the nodes where a pod preempts others
Drive = Callable[["Bench", LoopMeter], Awaitable[None]]


def cases() -> Iterator[Case]:
    """Yield the extender's handlers, each on its own cluster with the same objects."""
    nodes = [gpu_node(number) for number in range(NODES)]
    pods = list(bound_pods(filled(NODES, PODS)[0].ledger))

    def case(what: str, drive: Drive, placement: str = "binpack") -> Case:
        async def run(meter: LoopMeter) -> None:
            await drive(Bench(nodes, pods, placement), meter)

        return Case(f"extender: {what}", run)

    yield case(f"a list of {NODES} nodes and {PODS} pods", _lists)
    yield case("a list without any of these pods", _all_gone)
    yield case("a pod is bound, ends, and is gone", _pod_events)
    yield case(f"filter, prioritize and bind, {NODES} nodes", _verbs)
    yield case("preempt, 100 nodes of 128 pods, one GPU", _preempt)
    yield case("preempt, 100 nodes of 128 pods, eight GPUs", _preempt_all)
    yield case(f"a gang of {LARGE} is filtered, and its reservations end", _gang)
    yield case("packing: prices come, and the next filter", _reprice, "packing")


class Bench:
    """The parts of an extender, with an API server that executes each Binding at once."""

    def __init__(self, nodes: list[Node], pods: list[Pod], placement: str) -> None:
        self.nodes, self.pods = nodes, pods
        gangs = AdmissionConfiguration(gangs=True)
        configuration = Configuration(placement=placement, admission=gangs)  # type: ignore[arg-type]
        self.ledger = Ledger(configuration)
        self.engine = PlacementEngine(self.ledger, prices_later=True)
        evictable = EvictablePods(lambda uid: self.ledger.booking(uid) is not None)
        self.feed = Informer(self.ledger, lambda _: None, (evictable,))
        server: Any = _Server()
        self.unix_ns = 1
        self.binder = Binder(self.engine, server, lambda: 0.0, lambda: self.unix_ns)
        self.verbs = ExtenderHandlers(
            self.engine,
            self.binder,
            lambda _: None,
            lambda: None,
            evictable=evictable,
        )
        self.names = [node.metadata.name for node in nodes]

    async def list(self) -> None:
        """Apply the lists that an extender starts with."""
        await self.feed.listed_nodes(Replaced(self.nodes))
        await self.feed.listed_pods(Replaced(self.pods))


class _Server:
    async def bind(self, binding: Binding) -> None:
        pass


async def _lists(bench: Bench, meter: LoopMeter) -> None:
    with meter.watching():
        await asyncio.create_task(bench.list())


async def _pod_events(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()

    async def news() -> None:
        for pod in bench.pods[:100]:
            bench.feed.pods(Deleted(pod))
            bench.feed.pods(Applied(pod))
            await asyncio.sleep(0)

    with meter.watching():
        await asyncio.create_task(news())


async def _all_gone(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    with meter.watching():
        await asyncio.create_task(bench.feed.listed_pods(Replaced([])))


async def _gang(bench: Bench, meter: LoopMeter) -> None:
    """Filter the pods of a gang. They start only together, so each is checked with all others."""
    await bench.list()
    pods = list(_reserved_pods(bench))
    for pod in pods:
        bench.feed.pods(Applied(pod))

    async def ask() -> None:
        for pod in pods[-10:]:
            assert bench.verbs.filter(ExtenderArgs(pod=pod, node_names=bench.names)).node_names
            await asyncio.sleep(0)
        bench.unix_ns = _ENDS_NS
        await bench.binder.resolve_unconfirmed()

    with meter.watching():
        await asyncio.create_task(ask())


def _reserved_pods(bench: Bench) -> Iterator[Pod]:
    for number in range(LARGE):
        pod, node = gpu_pod(PODS + number, 1), bench.names[number % NODES]
        booking = booking_for(bench.engine, PODS + number, 1, node)
        assert booking is not None
        reservation = Reservation(
            "g/1", LARGE, LARGE, node, _ENDS_NS, booking.allocation, first=number == LARGE - 1
        )
        pod.metadata.labels = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: str(LARGE)}
        pod.metadata.annotations = {RESERVATION_ANNOTATION: encode_reservation(reservation)}
        yield pod


async def _verbs(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()

    async def ask() -> None:
        for number in range(10):
            pod = gpu_pod(PODS + number, 3 + number)
            pod.metadata.resource_version = "1"
            args, meta = ExtenderArgs(pod=pod, node_names=bench.names), pod.metadata
            assert bench.verbs.filter(args).node_names
            await asyncio.sleep(0)
            bench.verbs.prioritize(args)
            await asyncio.sleep(0)
            binding = ExtenderBindingArgs(
                pod_name=meta.name,
                pod_namespace=meta.namespace,
                pod_uid=meta.uid,
                node=bench.names[number],
            )
            assert not (await bench.verbs.bind(binding)).error
            await asyncio.sleep(0)

    with meter.watching():
        await asyncio.create_task(ask())


async def _preempting(bench: Bench, meter: LoopMeter, gpus: int) -> None:
    """Preempt on nodes that are full of small pods.

    The preemptor requests all memory of ``gpus`` GPUs.
    """
    nodes = [gpu_node(number, gpu_mib=_UNITS * UNIT_MIB) for number in range(100)]
    await bench.feed.listed_nodes(Replaced(nodes))
    for number in range(100 * GPUS * _UNITS):
        node = nodes[number % 100]
        booking = booking_for(bench.engine, number, 1, node.metadata.name)
        assert booking is not None
        assert booking.allocation is not None
        pod = gpu_pod(number, 1)
        pod.spec.node_name = node.metadata.name
        pod.metadata.annotations = {ALLOCATION_ANNOTATION: encode_allocation(booking.allocation)}
        bench.feed.pods(Applied(pod))
    asking = gpu_pod(PODS, _UNITS * gpus)
    asking.metadata.labels = {"aliyun.com/gpu-count": str(gpus)}
    asking.spec.priority = 1000
    offered = {name: MetaVictims(pods=[]) for name in islice(bench.names, 100)}
    args = ExtenderPreemptionArgs(pod=asking, node_name_to_meta_victims=offered)
    with meter.watching():
        answer = await asyncio.create_task(bench.verbs.preempt(args))
    assert len(answer.node_name_to_meta_victims) == 100


async def _preempt(bench: Bench, meter: LoopMeter) -> None:
    await _preempting(bench, meter, 1)


async def _preempt_all(bench: Bench, meter: LoopMeter) -> None:
    await _preempting(bench, meter, GPUS)


async def _reprice(bench: Bench, meter: LoopMeter) -> None:
    await bench.list()
    engine, demand = bench.engine, bench.engine.demand
    assert demand is not None

    async def learn() -> None:
        for _ in demand.catch_up():
            await asyncio.sleep(0)
        for number in range(900):
            pod = gpu_pod(PODS + number, 1 + number % 15)
            pod.spec.containers[0].resources.requests = {"cpu": f"{number + 1}m"}
            bench.verbs.filter(ExtenderArgs(pod=pod, node_names=bench.names[:1]))
            await asyncio.sleep(0)
        asked, arrays = demand.demand(), engine.ledger.node_arrays.copy()
        await asyncio.sleep(0)
        found = await asyncio.to_thread(prices, asked)  # the extender uses another process for this
        engine.packing_state = await asyncio.to_thread(build, arrays, found)
        await asyncio.sleep(0)
        bench.verbs.filter(ExtenderArgs(pod=gpu_pod(2 * PODS, 4), node_names=bench.names))

    with meter.watching():
        await asyncio.create_task(learn())
