"""No kubelet mounts a claim of blocks as files, nor has one of files as a device."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import POD, STATEFUL_SET, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

Written = Callable[[Json, str], list[Json]]  # objects with a claim of this spec, and a container that uses it so
USES: Json = {
    "volumeMounts": [{"name": "v", "mountPath": "/x"}],
    "volumeDevices": [{"name": "v", "devicePath": "/x"}],
}


def in_a_set(spec: Json, field: str) -> list[Json]:
    body = changed(STATEFUL_SET, f"spec.template.spec.containers.0.{field}", USES[field])
    return [changed(body, "spec.volumeClaimTemplates", [{"metadata": {"name": "v"}, "spec": spec}])]


def in_a_pod(spec: Json, field: str) -> list[Json]:
    body = changed(POD, f"spec.containers.0.{field}", USES[field])
    return [changed(body, "spec.volumes", [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}])]


def beside(spec: Json, field: str, namespace: str = "default") -> list[Json]:
    body = changed(POD, f"spec.containers.0.{field}", USES[field])
    metadata = {"name": "c", "namespace": namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    return [changed(body, "spec.volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]), claim]


def of_mode(mode: str) -> Json:
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {**spec, "volumeMode": mode} if mode else spec


def judged(tmp_path: Path, bodies: list[Json]) -> int:
    return len(expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests, []).pods)


@pytest.mark.parametrize("written", [in_a_set, in_a_pod, beside], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("mode", "wrong", "right"),
    [
        ("Block", "volumeMounts", "volumeDevices"),
        ("Filesystem", "volumeDevices", "volumeMounts"),
        ("", "volumeDevices", "volumeMounts"),
    ],
)
def test_claims_are_used_as_what_they_are(tmp_path: Path, written: Written, mode: str, wrong: str, right: str) -> None:
    assert judged(tmp_path, written(of_mode(mode), right)) == 1
    said = rf"{wrong}\[0\]\.name: Invalid value: \"v\": its claim has the volumeMode {mode or 'Filesystem'}, .*{right}"
    with pytest.raises(ManifestError, match=said):
        judged(tmp_path, written(of_mode(mode), wrong))


def test_a_claim_of_another_namespace_is_another_one(tmp_path: Path) -> None:
    assert judged(tmp_path, beside(of_mode("Block"), "volumeMounts", "other")) == 1
