"""Pods per second through the real kube-scheduler: without an extender, with one that does not decide, with gputile.

All run on the same control plane in the same run, alternating, since everything shares the machine's cores. The idle
extender answers filter with all names and prioritize with zeros, and binds with a plain Binding.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.extender import pod_body, write_cluster
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_extender
from tests.localcluster.idle_extender import extender_url, start_idle_extender

from benchmarks.report import Result

NAME = "throughput"
NODES, PODS, ROUNDS = 1_000, 600, 3
CLUSTER = f"""
nodes:
- {{name: 'n', count: {NODES}, mode: cgpu, gpus: {{count: 8, model: Tesla T4, memory: 16GiB}}, taints: []}}
"""


def run() -> Iterator[Result]:
    """Measure pods bound per second."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as directory:
        plane.nodes.create_nodes(described_nodes(write_cluster(Path(directory), CLUSTER)))
        gputile, url = start_extender(plane)
        idle = start_idle_extender(plane, bind=True)
        urls = {"gputile": url, "idle": extender_url(idle), "none": None}
        rates: dict[str, list[float]] = {name: [] for name in urls}
        with gputile, idle:
            for number in range(ROUNDS):
                for name in sorted(urls, reverse=bool(number % 2)):
                    rates[name].append(_rate(plane, urls[name], f"{name}-{number}"))
    mine, other, none = (statistics.median(rates[name]) for name in ("gputile", "idle", "none"))
    yield Result(NAME, f"{NODES} nodes, no extender", none, "pods/s")
    yield Result(NAME, f"{NODES} nodes, idle extender", other, "pods/s", None, other / none, "no extender")
    yield Result(NAME, f"{NODES} nodes, gputile", mine, "pods/s", None, mine / other, "the idle extender (target 0.9)")
    yield Result(NAME, f"{NODES} nodes, gputile", mine, "pods/s", None, mine / none, "no extender")


def _rate(plane: ControlPlane, url: str | None, name: str) -> float:
    """Create pods first and start the scheduler then, so that creating them does not count."""
    namespace = plane.create_namespace(f"bench-{name}")
    path = f"/api/v1/namespaces/{namespace}/pods"
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda i: plane.api.post(path, pod_body(f"p{i}", {"aliyun.com/gpu-mem": 1 + i % 4})), range(PODS))
        )
    name = f"scheduler-{name}"
    if url is None:
        scheduler = plane.start_scheduler(name=name)
    else:
        scheduler = plane.start_scheduler(url, name=name, bind=True, managed_resources=MANAGED)
    with scheduler:
        while (first := _bound(plane, path)) < PODS // 10:
            time.sleep(0.2)
        started = time.perf_counter()
        while (last := _bound(plane, path)) < PODS * 9 // 10:
            time.sleep(0.2)
        seconds = time.perf_counter() - started
    plane.nodes.delete_all_pods_now(namespace)
    return (last - first) / seconds


def _bound(plane: ControlPlane, path: str) -> int:
    return PODS - len(plane.api.get(path, fieldSelector="spec.nodeName=")["items"])
