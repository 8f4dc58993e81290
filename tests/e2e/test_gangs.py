"""Gangs on a real control plane: whole or not at all, whatever dies in the middle."""

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
    write_cluster,
)
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_controller, start_extender

pytestmark = pytest.mark.requirement("M13", "B5")

SETTINGS = {"admission": {"gangs": True}}
GANGS = 50
# Halves of GPUs: 80 of them for about 250 pods of the first test's gangs, when 60 percent of all could run at once.
CLUSTER = """
nodes:
- {name: 'n', count: 9, mode: cgpu, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
"""
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


def by_gang(plane: ControlPlane, namespace: str) -> dict[str, tuple[int, int]]:
    """Return how many pods of each gang are bound, and how many there are; finished ones count as neither."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pod in pods_in(plane, namespace):
        if pod["status"]["phase"] == "Succeeded":
            continue
        count = counts[pod["metadata"]["labels"][GANG_NAME_LABEL]]
        count[0] += bool(pod["spec"].get("nodeName"))
        count[1] += 1
    return {gang: (started, there) for gang, (started, there) in counts.items()}


def settled(plane: ControlPlane, namespace: str, free_of: int) -> bool:
    """Whether every gang is whole or waits, and no waiting one has room; ``free_of`` is how many halves there are."""
    counts = by_gang(plane, namespace).values()
    free = free_of - sum(started for started, _ in counts)
    whole = all(started in (0, there) for started, there in counts)
    return whole and all(there > free for started, there in counts if not started)


def test_50_gangs_on_room_for_60_percent_with_everybody_killed_in_turn(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    """No partial gang, all room that whole gangs can use is used, no deadlock, until all have run."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    sizes = {f"g{i:02}": random.Random(i).randint(2, 8) for i in range(GANGS)}
    halves = 9 * 8 * 2
    assert 0.5 < halves / sum(sizes.values()) < 0.7, "the test is about room for some of the gangs"
    bodies = [member(gang, size, i) for gang, size in sizes.items() for i in range(size)]
    random.Random(0).shuffle(bodies)
    options = {"bind": True, "preempt": True, "managed_resources": MANAGED}
    extender, url = start_extender(control_plane, settings=SETTINGS)
    first, _ = start_controller(control_plane, "controller-1", settings=SETTINGS)
    second, _ = start_controller(control_plane, "controller-2", settings=SETTINGS)
    scheduler = control_plane.start_scheduler(url, **options)  # type: ignore[arg-type]
    with extender, first, second, scheduler:
        half = len(bodies) // 2
        create(control_plane, namespace, bodies[:half])
        _wait_for_some(control_plane, namespace, 1)
        first.kill()
        create(control_plane, namespace, bodies[half:])
        _wait_for_some(control_plane, namespace, halves // 3)
        scheduler.kill()
        scheduler.start()
        first.start()
        runs = 0
        while counts := by_gang(control_plane, namespace):
            control_plane.wait(
                lambda: settled(control_plane, namespace, halves),
                "whole gangs to use all the room they can",
                300.0,
                0.3,
            )
            assert_nothing_over_allocated(control_plane)
            counts = by_gang(control_plane, namespace)
            running = sorted(gang for gang, (started, _) in counts.items() if started)
            assert running, "gangs wait for each other"
            if runs == 1:
                second.kill()
            _finish(control_plane, namespace, set(running[: max(1, len(running) // 2)]))
            runs += 1
        assert runs > 2, "all gangs ran at once: there was room for all"


def _wait_for_some(plane: ControlPlane, namespace: str, count: int) -> None:
    plane.wait(lambda: len(bound(pods_in(plane, namespace))) >= count, f"{count} pods to be bound")


def _finish(plane: ControlPlane, namespace: str, gangs: set[str]) -> None:
    """Have the pods of some gangs end."""
    ended = [
        pod["metadata"]["name"]
        for pod in pods_in(plane, namespace)
        if pod["metadata"]["labels"][GANG_NAME_LABEL] in gangs and pod["status"]["phase"] != "Succeeded"
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: plane.nodes.set_pod_phase(namespace, name, "Succeeded"), ended))


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
    text = "the empty cluster has room for 8"
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
    text = "gang eager: no place is kept for the pod yet"
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
