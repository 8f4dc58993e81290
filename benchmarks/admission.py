"""What admission adds to the creation of a pod on a real API server: with webhook and policies, and without.

The two alternate in one run on one control plane, since everything shares the machine's cores. Pods are created one
after the other, as a controller's slow start does; a plain pod meets the policies only.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tests.localcluster.admission import installed, pod
from tests.localcluster.controlplane import ControlPlane

from benchmarks.process_time import cpu_seconds
from benchmarks.report import Result

NAME = "admission"
PODS, ROUNDS = 500, 2
TARGET = 10.0  # milliseconds that admission may add
LIMITS: dict[str, dict[str, Any]] = {"GPU pod": {"aliyun.com/gpu-mem": 1}, "plain pod": {"cpu": "1"}}


def run() -> Iterator[Result]:
    """Measure wall-clock milliseconds of a creation."""
    times: dict[tuple[str, bool], list[float]] = {(what, with_it): [] for what in LIMITS for with_it in (False, True)}
    spent = 0.0
    with ControlPlane() as plane:
        for number in range(ROUNDS):
            for with_it in (False, True):
                with ExitStack() as stack:
                    if with_it:
                        stack.enter_context(installed(plane))
                    for what in LIMITS:
                        before = cpu_seconds(plane.processes["webhook"].pid) if with_it else 0.0
                        times[what, with_it] += _create(plane, what, f"bench-{number}-{with_it}-{what[0]}".lower())
                        spent += cpu_seconds(plane.processes["webhook"].pid) - before if with_it else 0.0
    for what in LIMITS:
        for name, fraction in (("median", 0.5), ("p99", 0.99)):
            without, beside = (_at(times[what, each], fraction) for each in (False, True))
            added, target = beside - without, TARGET if name == "p99" else None
            yield Result(NAME, f"{what} without admission, {name}", without, "ms")
            yield Result(NAME, f"{what}, added by admission, {name}", added, "ms", target, beside / without, "without")
    count = ROUNDS * (PODS + PODS // 10)
    yield Result(NAME, "CPU of the webhook for one GPU pod", spent / count * 1e3, "ms")


def _create(plane: ControlPlane, what: str, namespace: str) -> list[float]:
    path, times = f"/api/v1/namespaces/{plane.create_namespace(namespace)}/pods", []
    for number in range(PODS + PODS // 10):
        body = pod(f"p{number}", LIMITS[what])
        begin = time.perf_counter()
        plane.api.post(path, body)
        times.append((time.perf_counter() - begin) * 1e3)
    plane.nodes.delete_all_pods_now(namespace)
    return times[PODS // 10 :]


def _at(times: list[float], fraction: float) -> float:
    return sorted(times)[int(fraction * len(times))]
