"""What ships and what people apply, judged by a real API server with gputile's webhook; nothing of it is stored."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.tools.simulator.controllers import MAKERS, template_path
from tests.chart.helmcli import CHART, helm, settings
from tests.localcluster import kubernetes_fields
from tests.localcluster.admission import RunningWebhook, verdict
from tests.localcluster.controlplane import ControlPlane
from tests.unit.tools.simulator.manifests import CRON_JOB, DEPLOYMENT, JOB, POD, STATEFUL_SET, Json, changed

ROOT = Path(__file__).resolve().parents[2]
APPLICATIONS = sorted((ROOT / "examples" / "applications").glob("*.yaml"))


def test_the_fields_are_those_of_the_api_server(control_plane: ControlPlane) -> None:
    """What ships is what `make fields` writes."""
    served = kubernetes_fields.text(kubernetes_fields.served(control_plane.api))
    assert served == kubernetes_fields.FILE.read_text(encoding="utf-8")


@pytest.mark.requirement("U2", "U10", "M13")
@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "scheduler.mode": "own",
            "networkPolicies.enabled": True,
            "networkPolicies.metricsFrom": [{"podSelector": {}}],
        },
        {"agent.mps": True, "agent.cdiDir": "/var/run/cdi", "agent.driverDir": "/opt/nvidia", "agent.affinity": {}},
        {"features": {"sharing": False, "topology": False, "batch": False}, "podDisruptionBudgets.enabled": False},
    ],
    ids=["defaults", "own", "agent", "little"],
)
def test_the_api_server_accepts_every_object_of_the_chart(
    control_plane: ControlPlane, helm_programs: dict[str, Path], namespace: str, values: dict[str, Any]
) -> None:
    """The schema, the defaults and the CEL of every object are checked."""
    rendered = helm("template", "dry", CHART, f"--namespace={namespace}", "--kube-version=v1.36.2", *settings(values))
    answer = control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert answer.count("created (server dry run)") == sum(bool(d) for d in yaml.safe_load_all(rendered))


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
            assert verdict(control_plane.api, namespace, {**pod, "spec": template["spec"]}) == ""


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
def test_simulate_has_the_api_server_judge_what_is_not_about_gpus(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.yaml"
    nodes = "nodes: [{name: 'n', mode: share, count: 4, taints: [], gpus: {count: 4, memory: 15GiB}}]"
    cluster.write_text(f"{{apiVersion: gputile.io/v1alpha1, kind: Cluster, {nodes}}}")

    def simulated(*bodies: Json) -> tuple[int, str]:
        words = ["simulate", f"--cluster={cluster}", f"--namespace={namespace}", "--validate=server", "-f", "-"]
        words.append(f"--kubeconfig={control_plane.kubeconfig()}")
        result = CliRunner().invoke(app, words, input="\n".join(map(json.dumps, bodies)))
        return result.exit_code, result.stderr

    assert simulated(POD, DEPLOYMENT, STATEFUL_SET, JOB, CRON_JOB) == (0, "")
    assert control_plane.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"] == []
    for body, said in (
        (changed(DEPLOYMENT, "spec.replica", 3), "Deployment/w: spec.replica: unknown field"),
        (
            changed(DEPLOYMENT, "spec.template.spec.serviceAccountName", "other"),
            f"Deployment/w: spec.template: error looking up service account {namespace}/other: ",
        ),
        (changed(CRON_JOB, "spec.schedule", "never"), "CronJob/w: spec.schedule: Invalid value"),
    ):
        code, told = simulated(body)
        assert (code, f"standard input, document 1: {said}" in told) == (2, True), told
