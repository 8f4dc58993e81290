"""What an API server refuses only where an object is really created: a dry run asks no store, and no allocator."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError, load_manifests
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.dry_run import answer
from tests.manifests import DEPLOYMENT, POD, Json, changed

SERVICE: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a"},
    "spec": {"type": "NodePort", "ports": [{"port": 80}]},
}

BALANCED = changed(changed(SERVICE, "spec.type", "LoadBalancer"), "spec.externalTrafficPolicy", "Local")


def limit_range(**amounts: Json) -> Json:
    limits = [{"type": "Container", **amounts}]
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": limits}}


def quota(**hard: object) -> Json:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("body", "path", "value", "said"),
    [
        (POD, "metadata.resourceVersion", "5", "resourceVersion"),  # kubectl takes it away before it sends the object
        (DEPLOYMENT, "metadata.resourceVersion", "5", "resourceVersion"),
        (SERVICE, "spec.ports.0.nodePort", 80, "range"),
        (SERVICE, "spec.ports.0.nodePort", 29999, "range"),
        (SERVICE, "spec.ports.0.nodePort", 32768, "range"),
        (BALANCED, "spec.healthCheckNodePort", 511, "range"),
        (changed(BALANCED, "spec.ports.0.nodePort", 31777), "spec.healthCheckNodePort", 31777, "already allocated"),
        (POD, "spec.containers.0.args", ["x" * 1_600_000], "request is too large"),
        (DEPLOYMENT, "spec.template.spec.containers.0.args", ["x" * 3_200_000], "entity too large"),
    ],
)
def test_what_is_refused_when_it_is_created(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, body: Json, path: str, value: object, said: str
) -> None:
    text = json.dumps(changed(body, path, value))
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ManifestError, match=said):
        expand(load_manifests([str(tmp_path / "m.json")]).manifests, [])
    prefix = "/apis/apps/v1" if body["kind"] == "Deployment" else "/api/v1"
    with pytest.raises(ApiError, match=said):
        control_plane.api.request("POST", f"{prefix}/namespaces/{namespace}/{body['kind'].lower()}s", json.loads(text))


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("beside", "path", "value", "said"),
    [
        (
            limit_range(default={"cpu": "4"}),
            "spec.resources",
            {"limits": {"cpu": "2"}},
            "less than or equal to pod limits",
        ),
        (
            limit_range(defaultRequest={"cpu": "3"}),
            "spec.resources",
            {"requests": {"cpu": "1"}},
            "greater than or equal to",
        ),
        (
            limit_range(defaultRequest={"example.com/x": "1"}),
            "spec.hostname",
            "h",
            "Limit must be set for non overcommi",
        ),
        (
            limit_range(default={"hugepages-2Mi": "2Mi"}),
            "spec.containers.0.resources",
            {},
            "HugePages require cpu or mem",
        ),
        (quota(**{"requests.cpu": 9}), "spec.hostname", "h", "must specify requests.cpu for: "),
        (quota(**{"limits.memory": 9}), "spec.hostname", "h", "must specify limits.memory for: "),
        (quota(**{"limits.cpu": 1}), "spec.containers.0.resources", {"limits": {"cpu": 2}}, "exceeded quota"),
        (quota(**{"requests.cpu": 9}), "spec.resources", {"requests": {"cpu": 1}}, ""),
        (quota(**{"requests.cpu": 9}), "spec.containers.0.resources", {"limits": {"cpu": 1}}, ""),
    ],
)
def test_what_a_namespace_makes_of_a_pod(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, beside: Json, path: str, value: object, said: str
) -> None:
    pod = changed(POD, path, value)
    (tmp_path / "m.json").write_text(json.dumps(pod))
    (tmp_path / "n.json").write_text(json.dumps(beside))
    files = [str(tmp_path / name) for name in ("m.json", "n.json")]
    with pytest.raises(ManifestError, match=said) if said else contextlib.nullcontext():
        expand(load_manifests(files).manifests, [])
    plural = f"{beside['kind'].lower()}s"
    control_plane.api.request("POST", f"/api/v1/namespaces/{namespace}/{plural}", beside)
    if beside["kind"] == "ResourceQuota":  # some time passes until it is in force
        eventually(lambda: "must specify" in answer(control_plane, namespace, POD))
        eventually(lambda: "status unknown" not in answer(control_plane, namespace, pod))
    found = answer(control_plane, namespace, pod)
    assert said in found if said else found == ""


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(300):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come true in half a minute")
