"""Measures how much time admission adds to the creation of a pod on a real API server.

Rounds with gputile's webhook and policies alternate with rounds without them, on one control plane,
so that other load on the machine affects both. Pods are created one after the other, like the first
pods of a controller. For a plain pod, which requests no GPU, only the policies are evaluated. A
large pod requests no GPU either, but has so many annotations that the webhook reviews it instead of
the policies.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

from tests.localcluster.admission import installed, pod
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.processes import cpu_seconds

from benchmarks.report import Result

NAME = "admission"
PODS, ROUNDS = 500, 2
TARGET = 10.0  # milliseconds that admission may add
MANY, WRITES = 12_000, 5  # annotations of a large pod, and writes of each kind
LIMITS: dict[str, dict[str, Any]] = {
    "GPU pod": {"aliyun.com/gpu-mem": 1},
    "plain pod": {"cpu": "1"},
}


def run() -> Iterator[Result]:
    """Measure creations and other writes, in wall-clock milliseconds."""
    times: dict[tuple[str, bool], list[float]] = {
        (what, with_it): [] for what in LIMITS for with_it in (False, True)
    }
    large: dict[tuple[str, bool], list[float]] = {}
    spent = 0.0
    with ControlPlane() as plane:
        for number in range(ROUNDS):
            for with_it in (False, True):
                with ExitStack() as stack:
                    if with_it:
                        stack.enter_context(installed(plane))
                    for what in LIMITS:
                        before = cpu_seconds([plane.processes["webhook"].pid]) if with_it else 0.0
                        times[what, with_it] += _create(
                            plane, what, f"bench-{number}-{with_it}-{what[0]}".lower()
                        )
                        spent += (
                            cpu_seconds([plane.processes["webhook"].pid]) - before
                            if with_it
                            else 0.0
                        )
        # These pods come last, because they keep the API server busy for some time.
        for number, with_it in itertools.product(range(ROUNDS), (False, True)):
            with installed(plane) if with_it else nullcontext():
                for what, each in _write_large(plane, f"bench-large-{number}-{with_it}".lower()):
                    large.setdefault((what, with_it), []).append(each)
    for what in LIMITS:
        for name, fraction in (("median", 0.5), ("p99", 0.99)):
            without, beside = (_at(times[what, each], fraction) for each in (False, True))
            added, target = beside - without, TARGET if name == "p99" else None
            yield Result(NAME, f"{what} without admission, {name}", without, "ms")
            yield Result(
                NAME,
                f"{what}, added by admission, {name}",
                added,
                "ms",
                target,
                beside / without,
                "without",
            )
    for what in dict.fromkeys(what for what, _ in large):
        without, beside = (_at(large[what, each], 0.5) for each in (False, True))
        yield Result(
            NAME, f"{what} of a large pod, median", beside, "ms", None, beside / without, "without"
        )
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


def _write_large(plane: ControlPlane, namespace: str) -> Iterator[tuple[str, float]]:
    """Yield the kind and the duration in milliseconds of each write to several large pods."""
    path = f"/api/v1/namespaces/{plane.create_namespace(namespace)}/pods"
    annotations = {f"a{i}": "" for i in range(MANY)}
    for number in range(WRITES):
        name = f"p{number}"
        for what, send, place, body in (
            ("creation", plane.api.post, path, pod(name, meta={"annotations": annotations})),
            ("label", plane.api.patch, f"{path}/{name}", {"metadata": {"labels": {"a": "b"}}}),
            ("status", plane.api.patch, f"{path}/{name}/status", {"status": {"message": "x"}}),
        ):
            begin = time.perf_counter()
            send(place, body)
            yield what, (time.perf_counter() - begin) * 1e3
    plane.nodes.delete_all_pods_now(namespace)


def _at(times: list[float], fraction: float) -> float:
    return sorted(times)[int(fraction * len(times))]
