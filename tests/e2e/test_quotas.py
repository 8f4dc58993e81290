"""Kubernetes' own ResourceQuota and LimitRange govern GPU resources, and ``gputile explain`` names the quota."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import GPU_MEMORY
from tests.e2e.extender import events_of, pod_body, pods_in
from tests.localcluster.admission import verdict
from tests.localcluster.controlplane import ControlPlane


@pytest.mark.requirement("B4", "B5")
def test_a_quota_keeps_a_pod_from_being_created_and_explain_names_it(
    control_plane: ControlPlane, namespace: str
) -> None:
    """Of the 100 units that may be asked for a pod gets 60 by the LimitRange's default, so that the second waits."""
    plane, path = control_plane, f"/api/v1/namespaces/{namespace}"
    limits = [{"type": "Container", "max": {GPU_MEMORY: "80"}, "default": {GPU_MEMORY: "60"}}]
    plane.api.post(f"{path}/limitranges", {"metadata": {"name": "gpus"}, "spec": {"limits": limits}})
    large = pod_body("large", {GPU_MEMORY: 81})
    plane.wait(lambda: f"maximum {GPU_MEMORY}" in verdict(plane.api, namespace, large), "the LimitRange")
    hard = {"hard": {f"requests.{GPU_MEMORY}": "100"}}
    plane.api.post(f"{path}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
    quota = f"{path}/resourcequotas/gpus"
    plane.wait(lambda: plane.api.get(quota).get("status", {}).get("hard") == hard["hard"], "the quota")
    template: dict[str, Any] = {"metadata": {"labels": {"app": "train"}}, "spec": pod_body("x", {})["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "train"}}, "template": template}
    plane.api.post(f"/apis/apps/v1/namespaces/{namespace}/replicasets", {"metadata": {"name": "train"}, "spec": spec})
    plane.wait(lambda: len(events_of(plane, namespace, "train", "FailedCreate")) > 0, "the refusal")
    assert len(pods_in(plane, namespace)) == 1
    program = str(Path(sys.executable).with_name("gputile"))
    command = [program, "explain", f"{namespace}/train", f"--kubeconfig={plane.kubeconfig()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ReplicaSet train could not create it" in done.stderr
    assert f"requested: requests.{GPU_MEMORY}=60" in done.stderr
    assert "ResourceQuota gpus holds it" in done.stderr
