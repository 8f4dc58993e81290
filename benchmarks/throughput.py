"""Measures how many pods per second kube-scheduler binds with gputile, compared with two variants.

In these variants, the real kube-scheduler uses an idle extender or no extender. All variants
alternate in one run on the same control plane, so that other load on the machine affects them
equally. The idle extender returns all node names for filter and zeros for prioritize, and sends a
plain Binding. All pods exist before the scheduler starts.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.extender import pod_body, write_cluster
from tests.localcluster.commands import SchedulerOptions
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_extender
from tests.localcluster.processes import Process, cpu_seconds

from benchmarks.idle_extender import start_idle_extender
from benchmarks.report import Result

NAME = "throughput"
SIZES, PODS, ROUNDS = (1_000, 5_000), 600, 3
IDLE, NONE, GPUTILE = "idle extender", "no extender", "gputile"
COMPARED = ((NONE, None), (IDLE, NONE), (GPUTILE, IDLE), (GPUTILE, NONE))
CLUSTER = """
nodes:
- {{name: 'n', count: {nodes}, mode: cgpu,
   gpus: {{count: 8, model: Tesla T4, memory: 16GiB}}, taints: []}}
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """Bound pods per second, and CPU seconds of scheduler and extender for each pod."""

    pods_per_second: float
    cpu_seconds: float


def _gpu_pod(plane: ControlPlane, namespace: str, number: int) -> None:
    limits = {"aliyun.com/gpu-mem": 1 + number % 4}
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body(f"p{number}", limits))


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to schedule pods.

    ``start`` starts an extender of the given name, and returns its process and URL. The extender
    runs only while the variant's pods are scheduled. ``options`` are the scheduler's options.
    ``create`` creates a pod by its number. ``settled`` returns whether other controllers have
    finished their work for the pods of a namespace.
    """

    start: Callable[[str], tuple[Process, str]] | None = None
    options: SchedulerOptions = field(
        default_factory=lambda: SchedulerOptions(bind=True, managed_resources=MANAGED)
    )
    create: Callable[[ControlPlane, str, int], None] = _gpu_pod
    settled: Callable[[ControlPlane, str], bool] = lambda plane, namespace: True


def run() -> Iterator[Result]:
    """Measure pods bound per second, and the CPU time of scheduler and extender for each pod."""
    for nodes in SIZES:
        yield from _compared(nodes)


def _compared(nodes: int) -> Iterator[Result]:
    """Measure all variants on a cluster of this many nodes."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as directory:
        plane.nodes.create_nodes(
            described_nodes(write_cluster(Path(directory), CLUSTER.format(nodes=nodes)))
        )
        variants = {
            GPUTILE: Variant(lambda name: start_extender(plane, name)),
            IDLE: Variant(lambda name: start_idle_extender(plane, name, bind=True)),
            NONE: Variant(),
        }
        rates: dict[str, list[Rate]] = {name: [] for name in variants}
        for number in range(ROUNDS):
            for i, name in enumerate(sorted(variants, reverse=bool(number % 2))):
                rates[name].append(rate(plane, variants[name], f"{number}-{i}", PODS))
    speeds = {
        name: statistics.median(each.pods_per_second for each in found)
        for name, found in rates.items()
    }
    costs = {
        name: statistics.median(each.cpu_seconds for each in found) for name, found in rates.items()
    }
    where = f"{nodes:,} nodes"
    for name, against in COMPARED:
        ratios = (None, "") if against is None else (speeds[name] / speeds[against], against)
        yield Result(NAME, f"{where}, {name}", speeds[name], "pods/s", None, *ratios)
        ratios = (None, "") if against is None else (costs[name] / costs[against], against)
        yield Result(
            NAME, f"{where}, {name}, CPU for a pod", costs[name] * 1e3, "ms", None, *ratios
        )


def rate(plane: ControlPlane, variant: Variant, round_name: str, pods: int) -> Rate:
    """Measure the time in which the number of bound pods rises from one tenth to nine tenths."""
    namespace = plane.create_namespace(f"bench-{round_name}")
    path = f"/api/v1/namespaces/{namespace}/pods"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: variant.create(plane, namespace, number), range(pods)))
    plane.wait(lambda: variant.settled(plane, namespace), "what pods need")
    with ExitStack() as stack:
        working, url, options = [], None, SchedulerOptions()
        if variant.start is not None:
            extender, url = variant.start(f"extender-{round_name}")
            working, options = [stack.enter_context(extender)], variant.options
        scheduler = plane.start_scheduler(url, name=f"scheduler-{round_name}", **options)
        working.append(stack.enter_context(scheduler))
        first, started, spent = _reached(plane, path, pods // 10, working)
        last, ended, spent_then = _reached(plane, path, pods * 9 // 10, working)
    plane.nodes.delete_all_pods_now(namespace)
    plane.wait(lambda: variant.settled(plane, namespace), "what pods had to be gone")
    return Rate((last - first) / (ended - started), (spent_then - spent) / (last - first))


def _reached(
    plane: ControlPlane, path: str, count: int, working: list[Process]
) -> tuple[int, float, float]:
    """Wait until ``count`` pods are bound.

    Return their number, the time, and the CPU seconds of ``working`` until then.
    """
    while (bound := len(plane.api.get(path, fieldSelector="spec.nodeName!=")["items"])) < count:
        time.sleep(0.2)
    return bound, time.perf_counter(), cpu_seconds(each.pid for each in working)
