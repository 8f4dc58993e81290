"""Measures the agent on a real kubelet, while the kubelet admits 200 pods and while it is idle.

The measured values are the time to start, the memory, the latency of calls, and the idle CPU usage.
Kubelet, containerd, runc and the control plane share the machine's cores with the agent, as on a
node that starts many containers. The benchmark needs root.
"""

import re
import time
from collections.abc import Iterator

from tests.e2e.node import GpuNode, gpu_node, probe_pod
from tests.localcluster import binaries
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.processes import cpu_seconds, resident_mib

from benchmarks.report import Result
from gputile.api.well_known import GPU_MEMORY, MODE_LABEL

NAME = "node"
PODS, SETTLE_S, IDLE_S = 200, 90.0, 60.0
SETTINGS = {"trust": {"by": "cluster"}, "maxPodsPerGpu": 64}
ENOUGH_S = 900.0
_BUCKET = re.compile(r'gputile_agent_call_seconds_bucket\{call="(\w+)",le="([^"]+)"\} (\S+)')


def run() -> Iterator[Result]:
    """Measure seconds, milliseconds, MiB and percent of a core."""
    with (
        ControlPlane() as plane,
        gpu_node(
            plane, binaries.find(binaries.NODE), "bench", {MODE_LABEL: "cgpu"}, SETTINGS
        ) as here,
    ):
        yield Result(NAME, "start to registered and told", _restart(here), "s", 3.0)
        namespace = plane.create_namespace("bench-node")
        started = time.perf_counter()
        here.create(namespace, *(probe_pod(f"p{i}", {GPU_MEMORY: 1 + i % 3}) for i in range(PODS)))
        here.wait_running(PODS, namespace, timeout=ENOUGH_S)
        yield Result(
            NAME, f"{PODS} pods from creation to running", time.perf_counter() - started, "s"
        )
        metrics = here.agent.metrics()
        halves = _quantile(metrics, 0.5)
        for call, bound in sorted(_quantile(metrics, 0.99).items()):
            yield Result(
                NAME, f"{call}, half within (of the histogram's bounds)", halves[call] * 1000, "ms"
            )
            yield Result(
                NAME, f"{call}, 99 % within (of the histogram's bounds)", bound * 1000, "ms"
            )
        yield Result(
            NAME, f"memory, 8 GPUs, {PODS} pods", resident_mib(here.agent.pids()), "MiB", 80.0
        )
        time.sleep(SETTLE_S)  # Wait until the status of all pods has been written.
        used, since = cpu_seconds(here.agent.pids()), time.perf_counter()
        time.sleep(IDLE_S)
        yield Result(
            NAME,
            "idle CPU",
            100 * (cpu_seconds(here.agent.pids()) - used) / (time.perf_counter() - since),
            "%",
            0.5,
        )


def _restart(here: GpuNode) -> float:
    """Restart the agent. Return the seconds until the agent reports that it serves the node."""
    here.agent.process.stop()
    started = time.perf_counter()
    here.agent.process.start()
    here.agent.process.wait_ready(here.agent.is_ready, 60.0)
    return time.perf_counter() - started


def _quantile(metrics: str, part: float) -> dict[str, float]:
    """Return for each call a bound that the fraction ``part`` of the calls does not exceed.

    The bound is the smallest suitable bucket of the histogram, in seconds.
    """
    counts: dict[str, list[tuple[float, float]]] = {}
    for call, bound, count in _BUCKET.findall(metrics):
        counts.setdefault(call, []).append((float(bound), float(count)))
    return {
        call: next(
            bound for bound, count in sorted(found) if count >= part * max(c for _, c in found)
        )
        for call, found in counts.items()
    }
