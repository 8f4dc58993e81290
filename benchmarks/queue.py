"""Measures how long a pod that fits waits while kube-scheduler retries many pods that do not fit.

The pods that do not fit are in another namespace. The extender refuses them, because no single GPU
has enough free memory. Pods without GPUs end continuously, and whenever one ends, kube-scheduler
retries all refused pods. Meanwhile, pods that fit are created one after the other. Four variants
are measured in one run: without the refused pods, with kube-scheduler's default back-off, with a
higher priority for the pods that fit, and with the back-off of examples/extender/scheduler.yaml.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import yaml
from tests.e2e.extender import bound, pod_body, pods_in, write_cluster
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, described_nodes, start_extender

from benchmarks.report import Result

NAME = "queue"
NODES, CROWD, PODS = 50, 2_000, 5
SETTLE_SECONDS = 150.0  # after this time, the back-off of the refused pods is at its maximum
ENDS_SECONDS = 2.0  # between the ends of two pods
PATIENCE_SECONDS = 300.0
BACKOFF = "podMaxBackoffSeconds"
CLUSTER = f"""
nodes:
- {{name: 'n', count: {NODES}, mode: cgpu,
   gpus: {{count: 4, model: Tesla T4, memory: 16GiB}}, taints: []}}
"""
# After FILLING, 6 of 16 units are free on each GPU.
FILLING, TOO_LARGE, SMALL = ({"aliyun.com/gpu-mem": units} for units in (10, 8, 1))


def run() -> Iterator[Result]:
    """Measure the seconds from a pod's creation to its Binding."""
    ours = yaml.safe_load((EXAMPLES / "extender" / "scheduler.yaml").read_text(encoding="utf-8"))
    longer = {BACKOFF: ours[BACKOFF]}
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as directory:
        plane.nodes.create_nodes(described_nodes(write_cluster(Path(directory), CLUSTER)))
        urgent = {"metadata": {"name": "urgent"}, "value": 1000}
        plane.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        extender, url = start_extender(plane)
        with extender:
            with _scheduler(plane, url, "first", {}):
                _create(plane, plane.create_namespace("filling"), NODES * 4, FILLING)
                plane.wait(
                    lambda: len(bound(pods_in(plane, "filling"))) == NODES * 4,
                    "the filling",
                    PATIENCE_SECONDS,
                )
                alone = _waits(plane, "alone")
            with _crowd(plane, "default"), _scheduler(plane, url, "default", {}):
                time.sleep(SETTLE_SECONDS)
                behind, first = (
                    _waits(plane, "behind"),
                    _waits(plane, "urgent", priorityClassName="urgent"),
                )
            with _crowd(plane, "longer"), _scheduler(plane, url, "longer", longer):
                time.sleep(SETTLE_SECONDS)
                beside = _waits(plane, "beside")
    crowd = f"{CROWD:,} refused pods, "
    yield Result(NAME, "no other pods", alone, "s")
    yield Result(
        NAME, f"{crowd}{BACKOFF} unset", behind, "s", None, behind / alone, "no other pods"
    )
    yield Result(
        NAME,
        f"{crowd}the pod has a higher priority",
        first,
        "s",
        None,
        first / alone,
        "no other pods",
    )
    yield Result(
        NAME,
        f"{crowd}{BACKOFF} {longer[BACKOFF]}",
        beside,
        "s",
        None,
        beside / alone,
        "no other pods",
    )


def _scheduler(plane: ControlPlane, url: str, name: str, extra: dict[str, Any]) -> Any:
    return plane.start_scheduler(
        url,
        name=f"scheduler-{name}",
        bind=True,
        preempt=True,
        managed_resources=MANAGED,
        weight=WEIGHT,
        extra=extra,
    )


def _create(plane: ControlPlane, namespace: str, count: int, limits: dict[str, int]) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda number: plane.api.post(path, pod_body(f"p{number}", limits)), range(count)
            )
        )


@contextmanager
def _crowd(plane: ControlPlane, name: str) -> Iterator[None]:
    """Within the context, create pods that fit nowhere, and make other pods end continuously."""
    namespace = plane.create_namespace(f"crowd-{name}")
    _create(plane, namespace, CROWD, TOO_LARGE)
    over = threading.Event()
    ends = threading.Thread(target=_end_pods, args=(plane, namespace, over))
    ends.start()
    try:
        yield
    finally:
        over.set()
        ends.join()
        plane.wait(partial(_is_empty, plane, namespace), "the crowd to be gone", PATIENCE_SECONDS)


def _is_empty(plane: ControlPlane, namespace: str) -> bool:
    """Delete the pods of a namespace. Return whether no pod is left.

    One request may not delete all pods in time.
    """
    plane.nodes.delete_all_pods_now(namespace)
    return not pods_in(plane, namespace)


def _end_pods(plane: ControlPlane, namespace: str, over: threading.Event) -> None:
    while not over.wait(ENDS_SECONDS):
        try:
            plane.api.post(
                f"/api/v1/namespaces/{namespace}/pods", pod_body("ends", {"cpu": 1}, nodeName="n-1")
            )
            plane.nodes.delete_pod_now(namespace, "ends")
        except (ApiError, httpx.HTTPError):
            continue  # the API server is busy; go on with the next pod


def _waits(plane: ControlPlane, name: str, **spec: Any) -> float:
    """Return the median wait in seconds of pods that fit and are created one after the other."""
    namespace, seconds = plane.create_namespace(f"fits-{name}"), []
    for number in range(PODS):
        pod = f"p{number}"
        begin = time.perf_counter()
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body(pod, SMALL, **spec))
        plane.wait(partial(_is_bound, plane, namespace, pod), "a Binding", PATIENCE_SECONDS, 0.01)
        seconds.append(time.perf_counter() - begin)
    plane.nodes.delete_all_pods_now(namespace)
    return statistics.median(seconds)


def _is_bound(plane: ControlPlane, namespace: str, pod: str) -> bool:
    return bool(plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["spec"].get("nodeName"))
