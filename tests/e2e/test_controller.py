"""The controller on a real control plane: taints, silent agents, one replica at a time."""

from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, WHOLE_GPU, ConditionType
from tests.e2e.extender import write_cluster
from tests.localcluster.client import text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import described_nodes, start_controller, write_configuration

pytestmark = pytest.mark.requirement("G7", "U10")

CLUSTER = """
nodes:
- {name: gpu, count: 2, mode: cgpu, gpus: {count: 2, model: Tesla T4, memory: 16GiB}, taints: []}
- {name: plain}
"""
TAINT = {"key": WHOLE_GPU, "effect": "NoSchedule"}


def node(plane: ControlPlane, name: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.api.get(f"/api/v1/nodes/{name}")
    return found


def tainted(plane: ControlPlane) -> set[str]:
    nodes = plane.api.get("/api/v1/nodes")["items"]
    return {each["metadata"]["name"] for each in nodes if TAINT in (each["spec"].get("taints") or [])}


def condition(plane: ControlPlane, name: str) -> str:
    conditions = node(plane, name)["status"]["conditions"]
    return next((each["status"] for each in conditions if each["type"] == ConditionType.AGENT_SILENT), "")


def active(url: str) -> bool:
    return "gputile_controller_active 1.0" in text_at(f"{url}/metrics").splitlines()


@pytest.mark.requirement("G7", "U10")
def test_gpu_nodes_are_tainted_and_silent_agents_told_of(
    control_plane: ControlPlane, no_nodes: None, tmp_path: Path
) -> None:
    """With exactly the rights of the example manifest; a second replica takes over; a setting changes."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    settings = {"controller": {"agentSilentSeconds": 1}}
    first, first_url = start_controller(control_plane, "controller-1", lease_seconds=6, settings=settings)
    with first:
        control_plane.wait(lambda: tainted(control_plane) == {"gpu-1", "gpu-2"}, "the taints")
        second, second_url = start_controller(control_plane, "controller-2", lease_seconds=6, settings=settings)

        def only_one_acts() -> bool:
            acting = [active(first_url), active(second_url)]
            assert acting != [True, True]
            return any(acting)

        with second:
            control_plane.wait(only_one_acts, "one of the two to act")
            first.kill()
            control_plane.nodes.annotate("gpu-2", {INVENTORY_ANNOTATION: None})
            control_plane.nodes.set_capacity("gpu-2", {GPU_MEMORY: "0"})
            control_plane.nodes.set_capacity("gpu-1", {GPU_MEMORY: "0"})
            control_plane.wait(lambda: tainted(control_plane) == {"gpu-1"}, "the taint to go with the GPUs")
            control_plane.wait(lambda: active(second_url), "the second to act")
            control_plane.wait(lambda: condition(control_plane, "gpu-1") == "True", "the silent agent to be told of")
            control_plane.nodes.set_capacity("gpu-1", {GPU_MEMORY: "32"})
            control_plane.wait(lambda: condition(control_plane, "gpu-1") == "False", "all to be well again")
            configuration = control_plane.directory / "controller-2.configuration.yaml"
            write_configuration(configuration, {"controller": {"taintNodes": False}})
            control_plane.wait(lambda: tainted(control_plane) == set(), "the taints to go")
            second.stop()
            lease = control_plane.api.get("/apis/coordination.k8s.io/v1/namespaces/gputile/leases/gputile-controller")
            assert not lease["spec"].get("holderIdentity"), "a controller that ends gives the Lease up"
