"""What the simulator says of manifests is what a real API server says of them, and a real webhook."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gputile.tools.simulator.controllers import MAKERS, template_path
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import load_scenario
from tests.localcluster import kubernetes_fields
from tests.localcluster.admission import RunningWebhook, installed
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.unit.tools.simulator.manifests import (
    FORBIDDEN,
    Case,
    Json,
    ids,
)

APPLICATIONS = sorted((Path(__file__).resolve().parents[2] / "examples" / "applications").glob("*.yaml"))
# Without the taint of GPU nodes: a DaemonSet of which no pod could be made is refused here, and taken by an API server.
CLUSTER = (
    "{apiVersion: gputile.io/v1alpha1, kind: Cluster, "
    "nodes: [{name: 'n', mode: core_mem, taints: [], gpus: {memory: 15GiB}}]}"
)


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane) -> Iterator[RunningWebhook]:
    with installed(control_plane) as running:
        yield running


def answer(plane: ControlPlane, namespace: str, pod: Json) -> str:
    """Return why an API server does not take a pod, "" where it does; nothing is stored."""
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query=strict)
    except ApiError as error:
        return str(error)
    return ""


def verdict(directory: Path, body: Json) -> str:
    """Return why the simulator does not take an object, "" where it does."""
    (directory / "cluster.yaml").write_text(CLUSTER)
    (directory / "m.json").write_text(json.dumps(body))
    try:
        load_scenario([str(directory / "cluster.yaml")], [str(directory / "m.json")])
    except ManifestError as error:
        return str(error)
    return ""


def test_the_fields_are_those_of_the_api_server(control_plane: ControlPlane) -> None:
    """What ships is what `make fields` writes."""
    served = kubernetes_fields.text(kubernetes_fields.served(control_plane.api))
    assert served == kubernetes_fields.FILE.read_text(encoding="utf-8")


@pytest.mark.requirement("B2", "B4")
@pytest.mark.parametrize("case", FORBIDDEN, ids=ids(FORBIDDEN))
def test_what_admission_refuses_is_refused_by_both(
    control_plane: ControlPlane, webhook: RunningWebhook, case: Case, tmp_path: Path
) -> None:
    """Of a workload the API server takes the template, and the webhook refuses its pods."""
    pod = case.body
    if pod["kind"] != "Pod":
        template = pod["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    refused = answer(control_plane, "default", pod)
    assert refused
    said = verdict(tmp_path, case.body)
    assert case.said in said
    assert said.rpartition("[")[2] in refused


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("file", APPLICATIONS, ids=lambda file: file.stem)
def test_the_applications_are_taken(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str, file: Path
) -> None:
    """Each object of examples/applications with strict fields, and each pod that its controller would make."""
    for body in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if "kubeflow" not in body["apiVersion"]:  # whose kinds are not installed there
            text = yaml.safe_dump(body)
            create = ("create", "--dry-run=server", "--validate=strict", f"--namespace={namespace}", "-f", "-")
            assert "created" in control_plane.kubectl(*create, input=text)
        for template in templates(body):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **template["metadata"]}}
            assert answer(control_plane, namespace, {**pod, "spec": template["spec"]}) == ""


def templates(body: Json) -> Iterator[Json]:
    """Yield the templates of an object's pods, with the volumes that a StatefulSet's controller adds."""
    replicas = body.get("spec", {}).get("pytorchReplicaSpecs", {})
    yield from (each["template"] for each in replicas.values())
    if body["kind"] in MAKERS:
        found = body
        for step in template_path(body["kind"]):
            found = found[step]
        claims = [each["metadata"]["name"] for each in body["spec"].get("volumeClaimTemplates", ())]
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        yield {**found, "spec": {**found["spec"], "volumes": found["spec"].get("volumes", []) + volumes}}
