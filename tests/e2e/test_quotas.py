"""Kubernetes' own ResourceQuota and LimitRange govern GPU resources, and ``gputile explain`` names the quota."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from tests.e2e.extender import events_of, pod_body, pods_in
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("B5")


def quota(plane: ControlPlane, namespace: str, hard: Mapping[str, int]) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    spec = {"hard": {name: str(count) for name, count in hard.items()}}
    plane.api.post(path, {"metadata": {"name": "gpus"}, "spec": spec})
    plane.wait(lambda: plane.api.get(f"{path}/gpus").get("status", {}).get("hard") == spec["hard"], "the quota")


def used(plane: ControlPlane, namespace: str) -> dict[str, str]:
    found: dict[str, str] = plane.api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/gpus")["status"]["used"]
    return found


@pytest.mark.parametrize(
    ("resource", "limits"),
    [
        (GPU_MEMORY, {GPU_MEMORY: 60}),
        (GPU_CORE, {GPU_MEMORY: 1, GPU_CORE: 60}),
        (WHOLE_GPU, {WHOLE_GPU: 60}),
        (TOPOLOGY_GPU, {TOPOLOGY_GPU: 60}),
    ],
)
def test_a_quota_of_each_gpu_resource_refuses_what_is_beyond_it(
    control_plane: ControlPlane, namespace: str, resource: str, limits: Mapping[str, int]
) -> None:
    """100 may be asked for in sum: the second pod of 60 is refused when it is created, and fits after the first."""
    plane, path = control_plane, f"/api/v1/namespaces/{namespace}/pods"
    quota(plane, namespace, {f"requests.{resource}": 100})
    plane.api.post(path, pod_body("first", limits))
    assert used(plane, namespace) == {f"requests.{resource}": "60"}
    with pytest.raises(ApiError, match=rf"exceeded quota: gpus, requested: requests.{resource}=60"):
        plane.api.post(path, pod_body("second", limits))
    plane.nodes.delete_pod_now(namespace, "first")
    plane.wait(lambda: used(plane, namespace) == {f"requests.{resource}": "0"}, "the quota to be free")
    plane.api.post(path, pod_body("second", limits))


@pytest.mark.requirement("B4")
def test_explain_names_the_quota_that_keeps_a_pod_from_being_created(
    control_plane: ControlPlane, namespace: str
) -> None:
    plane = control_plane
    quota(plane, namespace, {f"requests.{GPU_MEMORY}": 100})
    template: dict[str, Any] = {"metadata": {"labels": {"app": "train"}}}
    template["spec"] = pod_body("x", {GPU_MEMORY: 60})["spec"]
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "train"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "train"}, "spec": spec}
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/replicasets", body)
    plane.wait(lambda: len(events_of(plane, namespace, "train", "FailedCreate")) > 0, "the refusal")
    assert len(pods_in(plane, namespace)) == 1
    program = str(Path(sys.executable).with_name("gputile"))
    command = [program, "explain", f"{namespace}/train", f"--kubeconfig={plane.kubeconfig()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ReplicaSet train could not create it" in done.stderr
    assert "ResourceQuota gpus holds it" in done.stderr


def test_a_limit_range_gives_containers_a_default_and_a_maximum(control_plane: ControlPlane, namespace: str) -> None:
    plane, path = control_plane, f"/api/v1/namespaces/{namespace}"
    limit = {"type": "Container", "default": {GPU_MEMORY: "4"}, "max": {GPU_MEMORY: "8"}}
    plane.api.post(f"{path}/limitranges", {"metadata": {"name": "gpus"}, "spec": {"limits": [limit]}})

    def created() -> bool:
        """The API server's admission knows the LimitRange a moment later."""
        name = f"plain-{len(pods_in(plane, namespace))}"
        resources = plane.api.post(f"{path}/pods", pod_body(name, {}))["spec"]["containers"][0]["resources"]
        amounts = [resources.get(kind, {}).get(GPU_MEMORY) for kind in ("limits", "requests")]
        return amounts == ["4", "4"]

    plane.wait(created, "the default of containers that ask for nothing", interval=0.5)
    with pytest.raises(ApiError, match=f"maximum {GPU_MEMORY} usage per Container is 8"):
        plane.api.post(f"{path}/pods", pod_body("large", {GPU_MEMORY: 9}))
