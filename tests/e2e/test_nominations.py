"""Nominations on a real control plane: the controller chooses nodes, and kube-scheduler binds the pods there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import GPU_MEMORY
from tests.e2e.extender import assert_nothing_over_allocated, bound, pod_body, pods_in, write_cluster
from tests.localcluster.client import text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, WEIGHT, described_nodes, start_controller, start_extender

pytestmark = pytest.mark.requirement("B3")

CLUSTER = """
nodes:
- {name: gpu, count: 4, mode: cgpu, gpus: {count: 2, model: Tesla T4, memory: 16GiB}, taints: []}
"""
ROOM = 16  # halves of GPUs
HALF = 8
ON = {"nominations": {"enabled": True}}


def nominated(plane: ControlPlane, namespace: str) -> dict[str, str]:
    pods = pods_in(plane, namespace)
    found = {pod["metadata"]["name"]: pod["status"].get("nominatedNodeName", "") for pod in pods}
    return {name: node for name, node in found.items() if node}


def create(plane: ControlPlane, namespace: str, count: int, **spec: Any) -> None:
    for number in range(count):
        body = pod_body(f"p{number:02}", {GPU_MEMORY: HALF}, **spec)
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def counter(url: str, name: str) -> float:
    """Return a counter of the controller."""
    lines = dict(line.rsplit(" ", 1) for line in text_at(f"{url}/metrics").splitlines() if not line.startswith("#"))
    return float(lines[f"gputile_controller_{name}_total"])


def schedule(plane: ControlPlane, namespace: str, settings: Mapping[str, object], count: int) -> dict[str, str]:
    """Have extender and kube-scheduler bind pods; return their nodes."""
    extender, url = start_extender(plane, settings=settings)
    scheduler = plane.start_scheduler(url, bind=True, managed_resources=MANAGED, weight=WEIGHT)
    with extender, scheduler:
        plane.wait(lambda: len(bound(pods_in(plane, namespace))) == count, "the pods to be bound")
    assert assert_nothing_over_allocated(plane) == count
    return bound(pods_in(plane, namespace))


def test_a_burst_of_pods_is_nominated_and_bound_there(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    """With exactly the rights of the example manifest. The pods fill the cluster, and one finds no room."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    controller, url = start_controller(control_plane, settings=ON)
    with controller:
        create(control_plane, namespace, ROOM + 1)
        control_plane.wait(lambda: len(nominated(control_plane, namespace)) == ROOM, "the nominations")
        chosen = nominated(control_plane, namespace)
        assert sorted(chosen.values()) == sorted(f"gpu-{i}" for i in range(1, 5) for _ in range(4))
        assert counter(url, "nominations") == ROOM
        places = schedule(control_plane, namespace, ON, ROOM)
        assert {name: node for name, node in places.items() if name in chosen} == chosen
        assert counter(url, "nominations_cleared") == 0
        assert counter(url, "failed_writes") == 0


def test_a_nomination_to_a_node_that_is_cordoned_is_cleared(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    controller, url = start_controller(control_plane, settings=ON)
    with controller:
        create(control_plane, namespace, 1)
        control_plane.wait(lambda: len(nominated(control_plane, namespace)) == 1, "the nomination")
        (node,) = nominated(control_plane, namespace).values()
        control_plane.kubectl("cordon", node)
        control_plane.wait(lambda: not nominated(control_plane, namespace), "the nomination to be cleared")
        control_plane.wait(lambda: counter(url, "nominations_cleared") == 1, "the counter")


def test_nothing_is_nominated_unless_it_is_turned_on(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    """Though the controller watches pods, for gangs."""
    settings = {"admission": {"gangs": True}}
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    controller, url = start_controller(control_plane, settings=settings)
    with controller:
        create(control_plane, namespace, 3)
        schedule(control_plane, namespace, settings, 3)
        assert counter(url, "nominations") == 0
        assert nominated(control_plane, namespace) == {}
