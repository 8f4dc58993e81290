"""Pods per second through the real kube-scheduler: without an extender, with one that does not decide, with gputile.

All run on the same control plane in the same run, alternating, since everything shares the machine's cores. The idle
extender answers filter with all names and prioritize with zeros, and binds with a plain Binding.

Two more rounds are of gputile's extender and pods with a ``status.nominatedNodeName``: kube-scheduler tries that node
first, and asks the extender about it alone (``evaluateNominatedNode`` of its ``schedule_one.go``). In one of them it is
there before the scheduler starts, and neither choices nor writes count: the most that a planner ahead of the scheduler
could win. In the other such a planner (``planner_ahead``) begins when the first pod is bound, and its CPU time counts.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.extender import pod_body, write_cluster
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_extender
from tests.localcluster.idle_extender import extender_url, start_idle_extender
from tests.localcluster.processes import Process

from benchmarks.planner_ahead import planner_ahead
from benchmarks.process_time import cpu_seconds
from benchmarks.report import Result

NAME = "throughput"
SIZES, PODS, ROUNDS = (1_000, 5_000), 600, 3
NOMINATED = "gputile, nodes nominated"
PLANNED = "gputile, a planner ahead"
PODS_OF_A_NODE = 40  # of 1 to 4 GiB each: 100 of the 128 GiB of a node
CLUSTER = """
nodes:
- {{name: 'n', count: {nodes}, mode: cgpu, gpus: {{count: 8, model: Tesla T4, memory: 16GiB}}, taints: []}}
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast pods were bound, and CPU seconds of scheduler and extender for one of them."""

    pods_per_second: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to schedule: which extender, if any, and whether the pods have nominated nodes, or are given some.

    The nominated nodes are those up to the number ``nominated``, which no other round has filled.
    """

    extender: Process | None = None
    url: str | None = None
    nominated: int | None = None
    planned: bool = False


def run() -> Iterator[Result]:
    """Measure pods bound per second, and what a pod costs scheduler and extender."""
    for nodes in SIZES:
        yield from _compared(nodes)


def _compared(nodes: int) -> Iterator[Result]:
    """Measure all variants on a cluster of this many nodes."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as directory:
        plane.nodes.create_nodes(described_nodes(write_cluster(Path(directory), CLUSTER.format(nodes=nodes))))
        gputile, url = start_extender(plane)
        idle = start_idle_extender(plane, bind=True)
        variants = {
            "gputile": Variant(gputile, url),
            NOMINATED: Variant(gputile, url, nominated=nodes - 1),
            PLANNED: Variant(gputile, url, planned=True),
            "idle extender": Variant(idle, extender_url(idle)),
            "no extender": Variant(),
        }
        rates: dict[str, list[Rate]] = {name: [] for name in variants}
        with gputile, idle:
            for number in range(ROUNDS):
                for i, name in enumerate(sorted(variants, reverse=bool(number % 2))):
                    rates[name].append(_rate(plane, variants[name], f"{number}-{i}"))
                variants[NOMINATED] = Variant(gputile, url, nominated=nodes - 1 - (number + 1) * PODS // PODS_OF_A_NODE)
    speeds = {name: statistics.median(each.pods_per_second for each in found) for name, found in rates.items()}
    costs = {name: statistics.median(each.cpu_seconds for each in found) for name, found in rates.items()}
    where = f"{nodes:,} nodes"
    for name, against in (
        *(("no extender", None), ("idle extender", "no extender"), ("gputile", "idle extender")),
        *(("gputile", "no extender"), (NOMINATED, "gputile"), (NOMINATED, "idle extender")),
        *((PLANNED, "gputile"), (PLANNED, "idle extender")),
    ):
        ratios = (None, "") if against is None else (speeds[name] / speeds[against], against)
        yield Result(NAME, f"{where}, {name}", speeds[name], "pods/s", None, *ratios)
        ratios = (None, "") if against is None else (costs[name] / costs[against], against)
        yield Result(NAME, f"{where}, {name}, CPU for a pod", costs[name] * 1e3, "ms", None, *ratios)


def _rate(plane: ControlPlane, variant: Variant, round_name: str) -> Rate:
    """Create pods first and start the scheduler then, so that creating them does not count."""
    namespace = plane.create_namespace(f"bench-{round_name}")
    path = f"/api/v1/namespaces/{namespace}/pods"

    def create(number: int) -> None:
        plane.api.post(path, pod_body(f"p{number}", {"aliyun.com/gpu-mem": 1 + number % 4}))
        if variant.nominated is not None:
            node = _nominated(variant.nominated, number)
            plane.api.patch(f"{path}/p{number}/status", {"status": {"nominatedNodeName": node}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(PODS)))
    name = f"scheduler-{round_name}"
    with ExitStack() as stack:
        planner = stack.enter_context(planner_ahead(plane, path)) if variant.planned else None
        if variant.url is None:
            scheduler = plane.start_scheduler(name=name)
        else:
            scheduler = plane.start_scheduler(variant.url, name=name, bind=True, managed_resources=MANAGED)
        asked = [stack.enter_context(scheduler), *([variant.extender] if variant.extender else [])]
        planning = 0.0
        if planner is not None:
            _reached(plane, path, 1, asked)
            planning = -cpu_seconds(planner.pid)
            planner.go()
        first, started, spent = _reached(plane, path, PODS // 10, asked)
        last, ended, spent_then = _reached(plane, path, PODS * 9 // 10, asked)
        if planner is not None:
            planning += cpu_seconds(planner.pid)
        if variant.nominated is not None:
            _check_nominated(plane, path, variant.nominated)
    plane.nodes.delete_all_pods_now(namespace)
    return Rate((last - first) / (ended - started), (spent_then - spent) / (last - first) + planning / PODS)


def _reached(plane: ControlPlane, path: str, count: int, asked: list[Process]) -> tuple[int, float, float]:
    """Wait until ``count`` pods are bound; return how many are, when, and the CPU seconds of ``asked`` so far."""
    while (bound := PODS - len(plane.api.get(path, fieldSelector="spec.nodeName=")["items"])) < count:
        time.sleep(0.2)
    return bound, time.perf_counter(), sum(cpu_seconds(each.pid) for each in asked)


def _nominated(last: int, number: int) -> str:
    """Return the node of a pod by its number; ``last`` is the number of the first pods' node."""
    return f"n-{last - number // PODS_OF_A_NODE}"


def _check_nominated(plane: ControlPlane, path: str, last: int) -> None:
    """Check that the pods are where they were nominated to.

    Raises:
        RuntimeError: less than nine tenths of those that are bound are there, so something else was measured.
    """
    pods = plane.api.get(path)["items"]
    bound = [each for each in pods if each["spec"].get("nodeName")]
    right = sum(each["spec"]["nodeName"] == _nominated(last, int(each["metadata"]["name"][1:])) for each in bound)
    if right < len(bound) * 0.9:
        raise RuntimeError(f"only {right} of {len(bound)} pods are on the node that they were nominated to")
