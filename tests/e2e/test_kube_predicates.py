"""A real kube-scheduler counts what pods take as the core's copy of its rules does."""

from typing import Any

import msgspec
import pytest

from gputile.api.core import Node, Pod
from gputile.core.kube_predicates.predicates import Predicates
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.usefixtures("no_nodes")

Json = dict[str, Any]
INFEASIBLE = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
SIDECAR = {"initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}]}


def held(name: str, in_use: int, kept: int) -> Json:
    """Return what a kubelet says of the CPU of a container, in CPUs."""
    said = {"name": name, "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
    return {**said, "allocatedResources": {"cpu": str(kept)}, "resources": {"requests": {"cpu": str(in_use)}}}


CASES: dict[str, tuple[Json, Json]] = {
    "plain": ({}, {}),
    "shrinks": ({}, {"containerStatuses": [held("c", 5, 2)]}),
    "grows": ({}, {"containerStatuses": [held("c", 1, 1)]}),
    "kept": ({}, {"containerStatuses": [held("c", 1, 4)]}),
    "infeasible": ({}, {"containerStatuses": [held("c", 1, 1)], **INFEASIBLE}),
    "sidecar": (SIDECAR, {"initContainerStatuses": [held("i", 3, 3)]}),
    "whole": (
        {"resources": {"requests": {"cpu": "4"}}},
        {"resources": {"requests": {"cpu": "6"}}, "allocatedResources": {"cpu": "5"}},
    ),
}


def asking(name: str, node: str, cpu: str, more: Json | None = None) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container], "nodeSelector": {"on": node}, **(more or {})},
    }


def test_what_a_resized_pod_takes(control_plane: ControlPlane, namespace: str) -> None:
    """A pod that asks for what the one on the node leaves of eight CPUs fits, and no larger one does."""
    plane, path = control_plane, f"/api/v1/namespaces/{namespace}/pods"
    left = {}
    for name, (more, status) in CASES.items():
        node = plane.nodes.create_node(name, labels={"on": name}, capacity={"cpu": "8"})
        plane.api.post(path, asking(f"{name}-runs", name, "2", {**more, "nodeName": name}))
        running = plane.api.patch(f"{path}/{name}-runs/status", {"status": {"phase": "Running", **status}})
        cluster = Predicates([msgspec.convert(node, Node, strict=False)])
        cluster.place(msgspec.convert(running, Pod, strict=False), name)
        left[name] = cluster.spare(name)["cpu"]
    assert left == {
        "plain": 6000,
        "shrinks": 3000,
        "grows": 6000,
        "kept": 4000,
        "infeasible": 7000,
        "sidecar": 3000,
        "whole": 2000,
    }

    def all_refused() -> bool:
        found = [plane.api.get(f"{path}/{name}-large")["status"].get("conditions", ()) for name in left]
        return all(any("Insufficient cpu" in each.get("message", "") for each in conditions) for conditions in found)

    def all_bound() -> bool:
        return all("nodeName" in plane.api.get(f"{path}/{name}-fits")["spec"] for name in left)

    with plane.start_scheduler():
        for name, amount in left.items():
            plane.api.post(path, asking(f"{name}-large", name, f"{amount + 1}m"))
        plane.wait(all_refused, "the larger pods to be refused")
        for name, amount in left.items():
            plane.api.post(path, asking(f"{name}-fits", name, f"{amount}m"))
        plane.wait(all_bound, "the others to be bound")
