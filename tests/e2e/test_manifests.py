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
from tests.localcluster.controlplane import ControlPlane, KubectlFailed
from tests.unit.tools.simulator.manifests import (
    DEPLOYMENT,
    FORBIDDEN,
    JOB,
    POD,
    Case,
    Json,
    changed,
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


@pytest.mark.requirement("B4")
def test_what_a_dry_run_of_kubectl_prints_can_be_judged(control_plane: ControlPlane, tmp_path: Path) -> None:
    """As in a pipeline: the API server has the first word, and what it prints has a UID, defaults and a status."""
    plain = {"limits": {"cpu": 1}}
    pod = changed(POD, "spec.containers.0.resources", plain)
    deployment = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources", plain)
    job = changed(JOB, "spec.template.spec.containers.0.resources", plain)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "asked.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, deployment, job]})
    )
    printed = control_plane.kubectl("apply", "--dry-run=server", "-o", "yaml", "-f", str(tmp_path / "asked.json"))
    (tmp_path / "printed.yaml").write_text(printed)
    placed = load_scenario([str(tmp_path / "cluster.yaml")], [str(tmp_path / "printed.yaml")]).pending
    assert len(placed) == 4
    broken = printed.replace("cpu: 1", "cpu: -1").replace('cpu: "1"', 'cpu: "-1"')
    (tmp_path / "printed.yaml").write_text(broken)
    with pytest.raises(ManifestError, match="must be greater than or equal to 0"):
        load_scenario([str(tmp_path / "cluster.yaml")], [str(tmp_path / "printed.yaml")])


MAP = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "w"}})
YAML_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: w}\n"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (f"{MAP}{MAP}\n{MAP}\n", True),
        (f"---\n{MAP}\n---\n{YAML_MAP}---\n{MAP}\n", True),
        (f"{YAML_MAP}---\n{MAP}\n", True),
        (f"{MAP}\n# that is all\n", False),
    ],
    ids=range(4),
)
def test_where_documents_end(control_plane: ControlPlane, tmp_path: Path, text: str, taken: bool) -> None:
    """JSON objects stand one behind the other, and a line of --- ends a document of YAML."""
    file = tmp_path / "m.yaml"
    file.write_text(text)
    try:
        control_plane.kubectl("create", "--dry-run=server", "-f", str(file))
        by_kubectl = True
    except KubectlFailed:
        by_kubectl = False
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    try:
        load_scenario([str(cluster)], [str(file)])
        here = True
    except ManifestError as error:
        here = "already" in str(error)  # the same object a second time, so all of the text was read
    assert (by_kubectl, here) == (taken, taken)
