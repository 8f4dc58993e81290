"""Preemption on the real kube-scheduler: pods of lower priority leave a GPU, and nobody else gets it."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gputile.api.well_known import GPU_MEMORY, RESERVATION_ANNOTATION
from tests.e2e.extender import assert_nothing_over_allocated, bound, events_of, gpus_of, pod_body, pods_in, scheduled
from tests.localcluster.client import STRATEGIC_PATCH
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("B5")

CLUSTER = """
gpuMemoryUnit: 128MiB
nodes:
- {name: a10, mode: cgpu, gpus: {count: 4, model: NVIDIA A10, memory: 15GiB}}
"""
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One node of 4 GPUs with 120 units each, and a controller that preempts."""
    control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(URGENT))
    directory = tmp_path_factory.mktemp("cluster")
    with scheduled(control_plane, directory, CLUSTER, unit="128MiB", controller=True) as cluster:
        yield cluster


def replica_set(replicas: int, units: int, **spec: Any) -> dict[str, Any]:
    """Return a ReplicaSet, which replaces each pod that leaves."""
    body = pod_body("x", {GPU_MEMORY: units}, **spec)
    template = {"metadata": {"labels": {"app": "low"}}, "spec": body["spec"]}
    selector = {"matchLabels": {"app": "low"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "low"},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


def full(plane: ControlPlane, namespace: str, replicas: int, units: int, **spec: Any) -> dict[str, list[int]]:
    """Have a ReplicaSet's pods run, and return the GPUs of each."""
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/replicasets", replica_set(replicas, units, **spec))
    plane.wait(lambda: len(bound(pods_in(plane, namespace))) == replicas, "the node to be full")
    for name in bound(pods_in(plane, namespace)):
        plane.nodes.set_pod_phase(namespace, name, "Running")
    return {pod["metadata"]["name"]: gpus_of(pod) for pod in pods_in(plane, namespace)}


def urgent(plane: ControlPlane, namespace: str, units: int) -> None:
    body = pod_body("high", {GPU_MEMORY: units}, priorityClassName="urgent")
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def leaving(plane: ControlPlane, namespace: str) -> list[str]:
    pods = pods_in(plane, namespace)
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")]


def wait_evicted(plane: ControlPlane, namespace: str) -> None:
    plane.wait(lambda: len(leaving(plane, namespace)) > 0, "a pod to be evicted")


def wait_refused(plane: ControlPlane, namespace: str) -> None:
    plane.wait(lambda: len(events_of(plane, namespace, "high", "NoGPUFits")) > 0, "the pod to be refused")


def end_leaving(plane: ControlPlane, namespace: str) -> None:
    """Do what the kubelet does."""
    for name in leaving(plane, namespace):
        plane.nodes.delete_pod_now(namespace, name)


def is_bound(plane: ControlPlane, namespace: str, name: str = "high") -> bool:
    """Return whether a pod is bound; pods that were evicted end meanwhile."""
    end_leaving(plane, namespace)
    assert_nothing_over_allocated(plane)
    return name in bound(pods_in(plane, namespace))


def pod_of(plane: ControlPlane, namespace: str, name: str = "high") -> dict[str, Any]:
    found: dict[str, Any] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


def test_one_pod_leaves_a_gpu_where_the_node_has_enough_in_sum(cluster: ControlPlane, namespace: str) -> None:
    """4 x 80 of 120 units in use, 100 wanted: kube-scheduler finds no victim. The victim's successor waits."""
    before = full(cluster, namespace, 4, 80)
    urgent(cluster, namespace, 100)
    wait_evicted(cluster, namespace)
    (victim,) = leaving(cluster, namespace)
    assert pod_of(cluster, namespace)["status"]["nominatedNodeName"] == "a10"
    (said,) = events_of(cluster, namespace, "high", "Preempting")
    assert victim in said
    cluster.wait(lambda: len(pods_in(cluster, namespace)) == 6, "the victim's successor")
    cluster.wait(lambda: is_bound(cluster, namespace), "the urgent pod to be bound")
    assert gpus_of(pod_of(cluster, namespace)) == before[victim]
    left = bound(pods_in(cluster, namespace))
    assert set(left) == (set(before) - {victim}) | {"high"}, "the others stay, the successor waits"
    assert events_of(cluster, namespace, victim, "Preempted") == [f"preempted by pod {namespace}/high on node a10"]


def test_victims_of_kube_scheduler_are_not_replaced_before_the_pod_is_bound(
    cluster: ControlPlane, namespace: str
) -> None:
    """8 x 55 of 120 units: the node has too little in sum. Successors of 55 units fit the GPU that becomes free.

    kube-scheduler proposes the two that started last, on different GPUs; one of them becomes free with a third.
    """
    before = full(cluster, namespace, 8, 55)
    on_gpu = {gpu: [name for name, indices in before.items() if indices == [gpu]] for gpu in range(4)}
    for gpu in (1, 2):
        started_last(cluster, namespace, on_gpu[gpu].pop())
    urgent(cluster, namespace, 115)
    cluster.wait(lambda: is_bound(cluster, namespace), "the urgent pod to be bound")
    left = set(before) & set(bound(pods_in(cluster, namespace)))
    assert len(left) == 5, "kube-scheduler's two victims left, one beside them, and nobody else"
    assert is_bound(cluster, namespace)


def started_last(plane: ControlPlane, namespace: str, name: str) -> None:
    """Report of a pod that it started an hour from now: after all others, by whatever clock."""
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    plane.api.patch(f"{path}/status", {"status": {"startTime": later}}, STRATEGIC_PATCH)
    plane.wait(lambda: plane.api.get(path)["status"]["startTime"] == later, "the status")


def test_a_place_is_kept_while_a_victim_takes_its_time(cluster: ControlPlane, namespace: str) -> None:
    """Others want what is free beside the victim. A new extender finds the place in the API server.

    kube-scheduler counts the victim and the nominated pod: 60 of the node's 480 units are left for others.
    """
    full(cluster, namespace, 4, 80, terminationGracePeriodSeconds=600)
    urgent(cluster, namespace, 100)
    wait_evicted(cluster, namespace)
    (victim,) = leaving(cluster, namespace)
    reservation = json.loads(pod_of(cluster, namespace)["metadata"]["annotations"][RESERVATION_ANNOTATION])
    assert reservation["preemption"] is True
    assert reservation["expires_ns"] / 1e9 > datetime.now().timestamp() + 600
    cluster.processes["extender"].kill()
    cluster.processes["extender"].start()
    (index,) = [share["index"] for share in reservation["allocation"]["cards"]]
    for i in range(3):
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body(f"small{i}", {GPU_MEMORY: 20}))
    cluster.wait(lambda: len(bound(pods_in(cluster, namespace))) == 7, "the others to be bound")
    small = [pod for pod in pods_in(cluster, namespace) if "small" in pod["metadata"]["name"]]
    assert index not in [gpu for pod in small for gpu in gpus_of(pod)]
    cluster.nodes.delete_pod_now(namespace, victim)
    cluster.wait(lambda: "high" in bound(pods_in(cluster, namespace)), "the urgent pod to be bound")
    assert gpus_of(pod_of(cluster, namespace)) == [index]
    assert_nothing_over_allocated(cluster)


def test_nobody_leaves_against_a_budget_until_it_allows_it(cluster: ControlPlane, namespace: str) -> None:
    full(cluster, namespace, 4, 80)
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "low"}}
    budget = {"metadata": {"name": "low"}, "spec": {"minAvailable": 4, "selector": selector}}
    cluster.api.post(path, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **budget})
    cluster.wait(lambda: cluster.api.get(f"{path}/low").get("status", {}).get("currentHealthy") == 4, "the budget")
    urgent(cluster, namespace, 100)
    wait_refused(cluster, namespace)
    time.sleep(5)
    assert not leaving(cluster, namespace)
    cluster.api.patch(f"{path}/low", {"spec": {"minAvailable": 3}})
    cluster.wait(lambda: is_bound(cluster, namespace), "the urgent pod to be bound")
    assert len(bound(pods_in(cluster, namespace))) == 4
