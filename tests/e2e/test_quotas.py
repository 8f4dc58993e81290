"""Kubernetes' own ResourceQuota and LimitRange govern GPU resources, and ``gputile explain`` names the quota."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from tests.e2e.extender import events_of, pod_body, pods_in
from tests.localcluster.admission import refusal, verdict
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("B5")

# What a container asks for that asks for 60 of each resource.
LIMITS: Final = {
    GPU_MEMORY: {GPU_MEMORY: 60},
    GPU_CORE: {GPU_MEMORY: 1, GPU_CORE: 60},
    WHOLE_GPU: {WHOLE_GPU: 60},
    TOPOLOGY_GPU: {TOPOLOGY_GPU: 60},
}


def quota(plane: ControlPlane, namespace: str, hard: Mapping[str, int]) -> None:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    spec = {"hard": {name: str(count) for name, count in hard.items()}}
    plane.api.post(path, {"metadata": {"name": "gpus"}, "spec": spec})
    plane.wait(lambda: plane.api.get(f"{path}/gpus").get("status", {}).get("hard") == spec["hard"], "the quota")


def used(plane: ControlPlane, namespace: str) -> dict[str, str]:
    found: dict[str, str] = plane.api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/gpus")["status"]["used"]
    return found


@pytest.mark.parametrize("resource", LIMITS)
def test_a_quota_of_each_gpu_resource_refuses_what_is_beyond_it(
    control_plane: ControlPlane, namespace: str, resource: str
) -> None:
    """100 may be asked for in sum: the second pod of 60 is refused when it is created, and fits after the first."""
    plane, path, limits = control_plane, f"/api/v1/namespaces/{namespace}/pods", LIMITS[resource]
    quota(plane, namespace, {f"requests.{resource}": 100})
    plane.api.post(path, pod_body("first", limits))
    assert used(plane, namespace) == {f"requests.{resource}": "60"}
    with pytest.raises(ApiError, match=rf"exceeded quota: gpus, requested: requests.{resource}=60"):
        plane.api.post(path, pod_body("second", limits))
    plane.nodes.delete_pod_now(namespace, "first")
    plane.wait(lambda: used(plane, namespace) == {f"requests.{resource}": "0"}, "the quota to be free")
    # the API server admits by its own copy of the quota, which may be older than what it has just answered
    plane.wait(lambda: not refusal(plane.api, "POST", path, pod_body("second", limits)), "the second pod to fit")


def explained(plane: ControlPlane, namespace: str, controller: str) -> str:
    """Return what explain says of the pods that a controller could not create."""
    program = str(Path(sys.executable).with_name("gputile"))
    command = [program, "explain", f"{namespace}/{controller}", f"--kubeconfig={plane.kubeconfig()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


def replica_set(plane: ControlPlane, namespace: str, limits: Mapping[str, int], replicas: int = 2) -> None:
    """Create a ReplicaSet, and wait until the API server has refused a pod of it."""
    template: dict[str, Any] = {"metadata": {"labels": {"app": "train"}}}
    template["spec"] = pod_body("x", limits)["spec"]
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "train"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "train"}, "spec": spec}
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/replicasets", body)
    plane.wait(lambda: len(events_of(plane, namespace, "train", "FailedCreate")) > 0, "the refusal")


@pytest.mark.requirement("B4")
def test_explain_names_the_quota_that_keeps_a_pod_from_being_created(
    control_plane: ControlPlane, namespace: str
) -> None:
    """The pods ask for nothing, and a LimitRange has each of them ask for 60."""
    limit_range(control_plane, namespace, {"default": {GPU_MEMORY: "60"}})
    quota(control_plane, namespace, {f"requests.{GPU_MEMORY}": 100})
    replica_set(control_plane, namespace, {})
    assert len(pods_in(control_plane, namespace)) == 1
    said = explained(control_plane, namespace, "train")
    assert "ReplicaSet train could not create it" in said
    assert f"requested: requests.{GPU_MEMORY}=60" in said
    assert "ResourceQuota gpus holds it" in said


@pytest.mark.requirement("B4")
def test_explain_says_what_else_of_a_namespace_keeps_a_pod_from_being_created(
    control_plane: ControlPlane, namespace: str
) -> None:
    """A quota that wants an amount to be named, then a LimitRange's maximum."""
    quota(control_plane, namespace, {"requests.cpu": 8})
    replica_set(control_plane, namespace, {GPU_MEMORY: 9}, 1)
    said = explained(control_plane, namespace, "train")
    assert "ResourceQuota gpus counts what the pod does not name" in said
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/gpus"
    control_plane.api.delete(path)
    control_plane.api.delete(f"/apis/apps/v1/namespaces/{namespace}/replicasets/train")
    limit_range(control_plane, namespace, {"max": {GPU_MEMORY: "8"}})
    replica_set(control_plane, namespace, {GPU_MEMORY: 9}, 1)
    control_plane.wait(
        lambda: "a LimitRange of the namespace holds it" in explained(control_plane, namespace, "train"), "the reason"
    )


def limit_range(plane: ControlPlane, namespace: str, limit: Mapping[str, Any]) -> None:
    """Create a LimitRange, and wait until the API server's admission knows it: a pod that is too large tells."""
    path = f"/api/v1/namespaces/{namespace}"
    limits = [{"type": "Container", "max": {GPU_MEMORY: "1000"}, **limit}]
    plane.api.post(f"{path}/limitranges", {"metadata": {"name": "gpus"}, "spec": {"limits": limits}})
    large = pod_body("too-large", {GPU_MEMORY: 1001})
    plane.wait(lambda: "maximum" in verdict(plane.api, namespace, large), "the LimitRange")


def test_a_limit_range_gives_containers_a_default_and_a_maximum(control_plane: ControlPlane, namespace: str) -> None:
    plane, path = control_plane, f"/api/v1/namespaces/{namespace}/pods"
    limit_range(plane, namespace, {"default": {GPU_MEMORY: "4"}, "max": {GPU_MEMORY: "8"}})
    resources = plane.api.post(path, pod_body("plain", {}))["spec"]["containers"][0]["resources"]
    assert [resources[kind][GPU_MEMORY] for kind in ("limits", "requests")] == ["4", "4"]
    with pytest.raises(ApiError, match=f"maximum {GPU_MEMORY} usage per Container is 8"):
        plane.api.post(path, pod_body("large", {GPU_MEMORY: 9}))


CLASS: Final = "shared-gpu"


@pytest.fixture
def device_class(control_plane: ControlPlane) -> Iterator[str]:
    """A DeviceClass, where claims are served: from Kubernetes 1.34 on."""
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    try:
        control_plane.api.post(path, {"metadata": {"name": CLASS}, "spec": {}})
    except ApiError as error:
        if error.status == 404:
            pytest.skip("skipped: this Kubernetes does not serve resource.k8s.io/v1")
        raise
    yield CLASS
    control_plane.api.delete(f"{path}/{CLASS}")


def claim_spec(device_class: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def test_a_quota_of_a_device_class_counts_the_devices_that_claims_ask_for(
    control_plane: ControlPlane, namespace: str, device_class: str
) -> None:
    """A claim beyond it is refused; one that a pod's template makes is refused too, and the pod's event says so."""
    plane, resource = control_plane, f"{device_class}.deviceclass.resource.k8s.io/devices"
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}"
    quota(plane, namespace, {resource: 3})
    plane.api.post(f"{path}/resourceclaims", {"metadata": {"name": "first"}, **claim_spec(device_class, 2)})
    # The quota controller may count once more before it has seen the claim.
    plane.wait(lambda: used(plane, namespace) == {resource: "2"}, "the claim to be counted")
    refused = f"exceeded quota: gpus, requested: {resource}=2, used: {resource}=2, limited: {resource}=3"
    with pytest.raises(ApiError, match=refused):
        plane.api.post(f"{path}/resourceclaims", {"metadata": {"name": "second"}, **claim_spec(device_class, 2)})
    template = {"metadata": {"name": "two"}, "spec": claim_spec(device_class, 2)}
    plane.api.post(f"{path}/resourceclaimtemplates", template)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body("claims", {}, resourceClaims=claims))

    def told() -> bool:
        return any(refused in text for text in events_of(plane, namespace, "claims", "FailedResourceClaimCreation"))

    plane.wait(told, "the pod's event")
