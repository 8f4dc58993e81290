"""Compares claims with extended resources, by preparation time, memory, throughput and packing.

Agent and gateway run as processes, and serve a fake kubelet that starts no containers. The real
kube-scheduler binds pods with claims in three variants: with gputile's extender, with an extender
that decides nothing, and without an extender. In a fourth variant, the pods request extended
resources instead of claims, and use gputile's extender. The variants alternate in short rounds, so
that other load on the machine affects all of them equally. The ratios are medians over the rounds.
If ``GPUTILE_TRACE`` names the directory of a trace, the trace is replayed on nodes that serve
claims, where kube-scheduler chooses the GPUs.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import numpy as np
from tests.e2e.extender import pods_in, write_cluster
from tests.e2e.test_claims import SETTINGS, claims_api, create_nodes, create_pod, create_template
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.claims import allocated as allocated_claim
from tests.fakes.claims import claiming_pod, share
from tests.fakes.corebuilders import container
from tests.integration.agent.process import PODS as PODS_PATH
from tests.integration.agent.process import process_scene
from tests.localcluster.commands import SchedulerOptions
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, described_nodes, start_extender
from tests.localcluster.processes import Process, cpu_seconds, resident_mib

from benchmarks.idle_extender import start_idle_extender
from benchmarks.packing import TRACE
from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.engine import LivePlacer, Placer, replay, spread_scores
from benchmarks.replay.study import POINTS, allocated
from benchmarks.replay.trace import read_arrivals, read_nodes, read_workload
from benchmarks.report import Result
from benchmarks.throughput import CLUSTER, Rate, Variant, rate
from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.resource_claims import claim_path
from gputile.api.well_known import CLAIMS_LABEL, GPU_MEMORY, MODE_LABEL
from gputile.node.gateway import kubelet_pb2 as dra

NAME = "claims"
GPUS, PODS = [81920] * 8, 200
CONFIGURATION = Configuration(
    gpu_memory_unit="1GiB", trust=Trust(by="cluster"), max_pods_per_gpu=64
)
SIZES, ROUNDS, BOUND_PODS = (100, 1_000), 5, 300
BY_CLAIMS, ALONE, EXTENDED = (
    "claims, gputile's entry",
    "claims, kube-scheduler alone",
    "extended resources, gputile",
)
IDLE = "claims, an idle extender's entry"
WORKLOADS, SEED = ("default", "gpushare60"), 42
_DRIVER = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


def run() -> Iterator[Result]:
    """Measure milliseconds, MiB, pods per second, and the percentage of allocated GPUs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        without = asyncio.run(_allocate(Path(directory)))
    yield from without
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield from asyncio.run(_prepare(Path(directory), without[-1].value))
    for nodes in SIZES:
        yield from _bound(nodes)
    if trace := os.environ.get(TRACE):
        for workload in WORKLOADS:
            yield from _packed(Path(trace), workload)


def _latencies(what: str, seconds: list[float], target: float | None = None) -> Iterator[Result]:
    yield Result(NAME, f"{what}, p50", statistics.median(seconds) * 1000, "ms")
    yield Result(
        NAME, f"{what}, p99", statistics.quantiles(seconds, n=100)[98] * 1000, "ms", target
    )


async def _allocate(directory: Path) -> list[Result]:
    """Measure the baseline for claims, which is the same pods with extended resources."""
    async with process_scene(directory, {MODE_LABEL: "cgpu"}, GPUS, CONFIGURATION) as here:
        await here.until_offered(GPU_MEMORY, 8 * 80)
        used = cpu_seconds(here.pids())
        for i in range(PODS):
            here.cluster.create(simple_pod(f"p{i}", container(mem=1)))
        await here.until_running(PODS)
        seconds, cpu = (
            here.kubelet.manager.seconds["Allocate"],
            (cpu_seconds(here.pids()) - used) * 1000 / PODS,
        )
        return [
            *_latencies(f"Allocate, {PODS} pods", seconds, 50.0),
            Result(NAME, "CPU for a pod, all calls", cpu, "ms"),
            Result(NAME, f"memory, {PODS} pods", resident_mib(here.pids()), "MiB", 80.0),
        ]


async def _prepare(directory: Path, without_mib: float) -> list[Result]:
    registry, labels = directory / "plugins_registry", {MODE_LABEL: "cgpu", CLAIMS_LABEL: "true"}
    registry.mkdir()
    options = (f"--cdi-dir={directory / 'cdi'}",)
    async with process_scene(directory, labels, GPUS, CONFIGURATION, options=options) as here:
        await here.until(lambda: any(registry.iterdir()), "the driver's socket")
        for i in range(2 * PODS):
            name = f"c{i}"
            claim = allocated_claim(name, share(i % len(GPUS), "1Gi"), pods=(name,))
            here.api.proxied[claim_path("default", name)] = (200, msgspec.json.encode(claim))
            pod = claiming_pod(name, {"main": [name]})
            pod.spec.node_name = NODE
            here.cluster.pods[pod.key] = pod
            here.api.put(PODS_PATH, msgspec.to_builtins(pod))
        (socket,) = registry.iterdir()
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            one_by_one = [await _call(channel, i) for i in range(PODS)]
            memory = resident_mib(here.pids())
            for i in range(PODS):
                await _call(channel, i, release=True)
            used = cpu_seconds(here.pids())
            last = max(await asyncio.gather(*(_call(channel, PODS + i) for i in range(PODS))))
            cpu = (cpu_seconds(here.pids()) - used) * 1000 / PODS
        return [
            *_latencies(f"prepare, {PODS} claims one by one", one_by_one, 50.0),
            Result(NAME, f"prepare, {PODS} claims at once, until the last is answered", last, "s"),
            Result(NAME, "the same, for each claim", last * 1000 / PODS, "ms", 50.0),
            Result(NAME, "CPU for a claim, at once", cpu, "ms"),
            Result(
                NAME,
                f"memory, {PODS} claims",
                memory,
                "MiB",
                without_mib + 3,
                memory / without_mib,
                "pods",
            ),
        ]


async def _call(channel: grpc.aio.Channel, number: int, *, release: bool = False) -> float:
    """Prepare or release a claim. Return the duration in seconds."""
    claims = [dra.Claim(namespace="default", name=f"c{number}", uid=f"uid-c{number}")]
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    ask = channel.unary_unary(
        f"{_DRIVER}/{'NodeUnprepareResources' if release else 'NodePrepareResources'}"
    )
    started = time.perf_counter()
    if release:
        await ask(dra.NodeUnprepareResourcesRequest(claims=claims).SerializeToString())
        return time.perf_counter() - started
    body = await ask(dra.NodePrepareResourcesRequest(claims=claims).SerializeToString())
    took = time.perf_counter() - started
    (answer,) = dra.NodePrepareResourcesResponse.FromString(body).claims.values()
    assert not answer.error, answer.error
    return took


def _bound(nodes: int) -> Iterator[Result]:
    """Measure how fast each variant binds pods, on nodes that serve claims and on other nodes."""
    description, rounds = CLUSTER.format(nodes=nodes), list[dict[str, Rate]]()
    with (
        ControlPlane() as plane,
        ControlPlane() as other,
        tempfile.TemporaryDirectory() as directory,
    ):
        plane.kubectl("apply", "-f", str(EXAMPLES / "extender" / "deviceclasses.yaml"))
        create_nodes(plane, Path(directory), description)
        other.nodes.create_nodes(described_nodes(write_cluster(Path(directory), description)))
        options = SchedulerOptions(managed_resources=MANAGED, weight=WEIGHT, claims=True)

        def start(name: str) -> tuple[Process, str]:
            return start_extender(plane, name, settings=SETTINGS)

        def start_idle(name: str) -> tuple[Process, str]:
            return start_idle_extender(plane, name)

        variants = {
            BY_CLAIMS: (plane, Variant(start, options, _claiming, _settled)),
            IDLE: (plane, Variant(start_idle, options, _claiming, _settled)),
            ALONE: (plane, Variant(create=_claiming, settled=_settled)),
            EXTENDED: (other, Variant(lambda name: start_extender(other, name))),
        }
        for number in range(ROUNDS):
            turns: dict[str, Rate] = {}
            for i, name in enumerate(sorted(variants, reverse=bool(number % 2))):
                turns[name] = rate(*variants[name], f"{number}-{i}", BOUND_PODS)
            rounds.append(turns)
    yield Result(NAME, f"{nodes:,} nodes, load of the machine at the end", os.getloadavg()[1], "")
    for name in (EXTENDED, ALONE, IDLE, BY_CLAIMS):
        where = f"{nodes:,} nodes, {name}"
        speed, faster = _middle(
            [(each[name].pods_per_second, each[ALONE].pods_per_second) for each in rounds]
        )
        yield Result(NAME, where, speed, "pods/s", None, faster, ALONE)
        cost, dearer = _middle(
            [(each[name].cpu_seconds, each[ALONE].cpu_seconds) for each in rounds]
        )
        yield Result(NAME, f"{where}, CPU", cost * 1e3, "ms", None, dearer, ALONE)


def _middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the first values, and the median ratio of first to second value."""
    return statistics.median(one for one, _ in pairs), statistics.median(
        one / other for one, other in pairs
    )


def _claiming(plane: ControlPlane, namespace: str, number: int) -> None:
    """Create a pod with a claim. The first pod of each size also creates the claim template."""
    size = 1 + number % 4
    if number < 4:
        create_template(plane, namespace, f"share-{size}", memory=f"{size}Gi")
    create_pod(plane, namespace, f"p{number}", f"share-{size}")


def _settled(plane: ControlPlane, namespace: str) -> bool:
    """Return whether the controller manager has created the claims of all pods, and deleted the
    claims of deleted pods.
    """
    return len(plane.api.get(claims_api(namespace))["items"]) == len(pods_in(plane, namespace))


@dataclass
class KubeSchedulerAlone:
    """Places pods as kube-scheduler does without an extender.

    Nodes are chosen by free CPU and memory, and the pod gets the first GPUs that fit.
    """

    cluster: ReplayCluster

    def arrive(self, uid: str, index: int) -> None:
        """Do nothing, because kube-scheduler does not learn from arrivals."""

    def place(self, uid: str, index: int) -> int | None:
        """Book the pod on the best node. Return the row of the node."""
        fitting = np.flatnonzero(self.cluster.fits(index, np.arange(len(self.cluster.gpus))))
        if not len(fitting):
            return None
        scores = spread_scores(self.cluster, self.cluster.shapes[index])
        row = int(fitting[scores[fitting].argmax()])
        self.cluster.book(uid, index, row)
        return row


def _packed(trace: Path, name: str) -> Iterator[Result]:
    """Replay a workload. Yield the percentage of allocated GPUs at 100 % demand."""
    nodes, workload = read_nodes(trace), read_workload(trace, name)
    arrivals = read_arrivals(trace, nodes, workload, SEED)

    def at_100(placer: Placer) -> float:
        found = allocated(replay(placer, workload, arrivals), POINTS[1])
        return found if found is not None else float("nan")

    def cluster(*, claims: bool) -> ReplayCluster:
        return ReplayCluster(nodes, workload.shapes, arrivals.rank, "packing", claims=claims)

    own = at_100(LivePlacer(cluster(claims=False)))
    yield Result(NAME, f"{name}: packing, its own choice of GPU", own, "%")
    first = at_100(LivePlacer(cluster(claims=True)))
    yield Result(
        NAME,
        f"{name}: packing, the first GPU that fits",
        first,
        "%",
        None,
        first / own,
        "its own choice",
    )
    alone = at_100(KubeSchedulerAlone(cluster(claims=True)))
    yield Result(
        NAME, f"{name}: kube-scheduler alone", alone, "%", None, alone / own, "packing's own choice"
    )
