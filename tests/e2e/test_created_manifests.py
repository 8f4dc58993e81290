"""What an API server refuses only where an object is really created: a dry run asks no store, and no allocator."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.manifests import ManifestError, load_manifests
from gputile.tools.simulator.workloads import expand
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.manifests import DEPLOYMENT, POD, Json, changed

SERVICE: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a"},
    "spec": {"type": "NodePort", "ports": [{"port": 80}]},
}


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("body", "path", "value", "said"),
    [
        (POD, "metadata.resourceVersion", "5", "resourceVersion"),  # kubectl takes it away before it sends the object
        (DEPLOYMENT, "metadata.resourceVersion", "5", "resourceVersion"),
        (SERVICE, "spec.ports.0.nodePort", 80, "range"),
        (SERVICE, "spec.ports.0.nodePort", 29999, "range"),
        (SERVICE, "spec.ports.0.nodePort", 32768, "range"),
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
