"""Gangs on a real control plane: whole or not at all. Components die in ``test_outages`` and ``test_soak``."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY, POD_GROUP_LABEL
from tests.e2e.extender import (
    assert_nothing_over_allocated,
    bound,
    events_of,
    pod_body,
    pods_in,
    scheduled,
    why_pending,
)
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("M13", "B5")

SETTINGS = {"admission": {"gangs": True}}
SMALL = """
nodes:
- {name: s, count: 2, mode: cgpu, gpus: {count: 2, model: Tesla T4, memory: 16GiB}, taints: []}
"""
HALF = 8
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent-gangs"},
    "value": 1000,
}


def member(gang: str, size: int, number: int, units: int = HALF) -> dict[str, Any]:
    """A pod as the webhook leaves it: with its gate."""
    labels = {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)}
    return pod_body(f"{gang}-{number}", {GPU_MEMORY: units}, labels=labels, schedulingGates=[{"name": GANG_GATE}])


def create(plane: ControlPlane, namespace: str, bodies: list[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda body: plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body), bodies))


@pytest.fixture(scope="module")
def small(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Eight halves of GPUs, with extender, scheduler and controller."""
    directory = tmp_path_factory.mktemp("small")
    with scheduled(control_plane, directory, SMALL, settings=SETTINGS, controller=True) as cluster:
        yield cluster


@pytest.mark.requirement("M13")
def test_a_gang_of_5_on_capacity_for_3_starts_none_and_says_why(small: ControlPlane, namespace: str) -> None:
    """M13, to the letter; and then it starts, when there is room."""
    create(small, namespace, [pod_body(f"filler-{i}", {GPU_MEMORY: HALF}) for i in range(5)])
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 5, "the fillers to be bound")
    create(small, namespace, [member("train", 5, i) for i in range(5)])
    text = "there is room for 3"
    small.wait(lambda: any(text in m for m in events_of(small, namespace, "train-0", "GangWaiting")), text)
    assert not [name for name in bound(pods_in(small, namespace)) if name.startswith("train")]
    for i in range(2):
        small.nodes.delete_pod_now(namespace, f"filler-{i}")
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 8, "the gang to start")
    assert_nothing_over_allocated(small)


def test_a_gang_that_can_never_fit_says_so_and_holds_nobody_up(small: ControlPlane, namespace: str) -> None:
    create(small, namespace, [member("huge", 9, i) for i in range(9)])
    create(small, namespace, [member("modest", 8, i) for i in range(8)])
    text = "an empty cluster has room for 8"
    small.wait(lambda: any(text in m for m in events_of(small, namespace, "huge-0", "GangTooLarge")), text)
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 8, "the other gang to start")
    assert all(name.startswith("modest") for name in bound(pods_in(small, namespace)))


@pytest.mark.requirement("M13")
def test_a_pod_whose_gate_is_gone_starts_no_sooner_than_its_gang(small: ControlPlane, namespace: str) -> None:
    """Without a place the extender refuses it on every node, whoever removed the gate."""
    bodies = [member("eager", 3, i) for i in range(3)]
    del bodies[0]["spec"]["schedulingGates"]
    create(small, namespace, bodies[:2])
    small.api.patch(f"/api/v1/namespaces/{namespace}/pods/eager-1", {"spec": {"schedulingGates": []}})
    text = "gang eager: no GPUs are reserved for the pod yet"
    for name in ("eager-0", "eager-1"):
        small.wait(lambda name=name: text in why_pending(small, namespace, name), text)  # type: ignore[misc]
    assert not bound(pods_in(small, namespace))
    create(small, namespace, bodies[2:])
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 3, "the gang to start")


def test_pods_that_come_one_after_the_other_start_when_the_last_is_there(small: ControlPlane, namespace: str) -> None:
    create(small, namespace, [member("late", 3, i) for i in range(2)])
    text = "2 of the 3 pods that start together exist"
    small.wait(lambda: any(text in m for m in events_of(small, namespace, "late-0", "GangIncomplete")), text)
    create(small, namespace, [member("late", 3, 2)])
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 3, "the gang to start")
    # One fails and is replaced: its successor joins the two that run.
    small.nodes.set_pod_phase(namespace, "late-0", "Failed")
    create(small, namespace, [member("late", 3, 3)])
    small.wait(lambda: "late-3" in bound(pods_in(small, namespace)), "the successor to start")


def test_a_gang_of_higher_priority_has_just_enough_pods_evicted(small: ControlPlane, namespace: str) -> None:
    """All GPUs are full. Two whole GPUs become free, on any nodes, and nobody of the gang starts before."""
    small.kubectl("apply", "-f", "-", input=yaml.safe_dump(URGENT))
    create(small, namespace, [pod_body(f"filler-{i}", {GPU_MEMORY: HALF}) for i in range(8)])
    small.wait(lambda: len(bound(pods_in(small, namespace))) == 8, "the fillers to be bound")
    for i in range(8):
        small.nodes.set_pod_phase(namespace, f"filler-{i}", "Running")
    gang = [member("urgent", 2, i, 2 * HALF) for i in range(2)]
    for body in gang:
        body["spec"]["priorityClassName"] = "urgent-gangs"
    create(small, namespace, gang)
    small.wait(lambda: len(_leaving(small, namespace)) == 4, "four pods to be evicted")
    assert not [name for name in bound(pods_in(small, namespace)) if name.startswith("urgent")]
    assert events_of(small, namespace, "urgent-0", "GangPreempting")
    create(small, namespace, [pod_body("late", {GPU_MEMORY: HALF})])
    victims = _leaving(small, namespace)
    for name in victims[:3]:
        small.nodes.delete_pod_now(namespace, name)
    why = "GPU"
    small.wait(lambda: why in why_pending(small, namespace, "late"), "the late pod to be refused what is kept")
    assert not [name for name in bound(pods_in(small, namespace)) if name.startswith("urgent")], "one has to leave yet"
    small.nodes.delete_pod_now(namespace, victims[3])
    small.wait(
        lambda: {"urgent-0", "urgent-1"} <= set(bound(pods_in(small, namespace))), "the gang to start on what they left"
    )
    assert_nothing_over_allocated(small)
    assert not _leaving(small, namespace), "nobody else has to go"
    assert "late" not in bound(pods_in(small, namespace))


def _leaving(plane: ControlPlane, namespace: str) -> list[str]:
    return [each["metadata"]["name"] for each in pods_in(plane, namespace) if each["metadata"].get("deletionTimestamp")]


def test_a_pod_group_says_how_many_start_together(small: ControlPlane, namespace: str) -> None:
    """The PodGroup object of scheduler-plugins, where its kind is installed."""
    small.kubectl("apply", "-f", "-", input=POD_GROUP_KIND)
    try:
        small.wait(lambda: _has_pod_groups(small), "the kind to be served")
        for i in range(2):
            body = member("job", 1, i)
            body["metadata"]["labels"] = {POD_GROUP_LABEL: "job"}
            create(small, namespace, [body])
        _create_pod_group(small, namespace, "job", 3)
        small.wait(
            lambda: any("2 of the 3" in m for m in events_of(small, namespace, "job-0", "GangIncomplete")), "2 of 3"
        )
        body = member("job", 1, 2)
        body["metadata"]["labels"] = {POD_GROUP_LABEL: "job"}
        create(small, namespace, [body])
        small.wait(lambda: len(bound(pods_in(small, namespace))) == 3, "the gang to start")
    finally:
        small.kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io", "--wait=false")


def _create_pod_group(plane: ControlPlane, namespace: str, name: str, size: int) -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size},
    }
    plane.api.post(f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups", group)


def _has_pod_groups(plane: ControlPlane) -> bool:
    try:
        plane.api.get("/apis/scheduling.x-k8s.io/v1alpha1/podgroups")
    except Exception:
        time.sleep(0.2)
        return False
    return True


POD_GROUP_KIND = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: podgroups.scheduling.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
spec:
  group: scheduling.x-k8s.io
  scope: Namespaced
  names: {kind: PodGroup, plural: podgroups, singular: podgroup, listKind: PodGroupList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {minMember: {type: integer, minimum: 1}}}
"""
