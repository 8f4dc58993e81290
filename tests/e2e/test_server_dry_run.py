"""``gputile simulate --validate=server`` has a real API server judge objects, and the pods of their templates."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.localcluster.controlplane import ControlPlane
from tests.unit.tools.simulator.manifests import CRON_JOB, DEPLOYMENT, JOB, POD, STATEFUL_SET, Json, changed

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
CLUSTER = (
    "{apiVersion: gputile.io/v1alpha1, kind: Cluster, "
    "nodes: [{name: 'n', mode: share, count: 4, taints: [], gpus: {count: 4, memory: 15GiB}}]}"
)
TEMPLATE = DEPLOYMENT["spec"]["template"]
DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainings.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "trainings", "kind": "Training"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "workers": {"type": "integer", "maximum": 8},
                                    "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
TRAINING: Json = {
    "apiVersion": "example.com/v1",
    "kind": "Training",
    "metadata": {"name": "t"},
    "spec": {"workers": 2, "template": TEMPLATE},
}
KINDS = """
apiVersion: gputile.io/v1alpha1
kind: PodKinds
kinds:
- apiVersion: example.com/v1
  kind: Training
  pods: [{template: spec.template, count: [spec.workers]}]
"""
MOUNTING = changed(
    changed(
        STATEFUL_SET,
        "spec.volumeClaimTemplates",
        [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    ),
    "spec.template.spec.containers.0.volumeMounts",
    [{"name": "data", "mountPath": "/data"}],
)


class Asked:
    """What ``gputile simulate`` says of objects in a namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self.plane, self.namespace = plane, namespace
        self._cluster, self._kinds = directory / "cluster.yaml", directory / "kinds.yaml"
        self._cluster.write_text(CLUSTER)
        self._kinds.write_text(KINDS)

    def about(self, *bodies: Json, user: str = "admin", options: tuple[str, ...] = ()) -> tuple[int, str]:
        """Return the exit code, and what is said on standard error."""
        words = ["simulate", f"--cluster={self._cluster}", f"--kinds={self._kinds}", f"--namespace={self.namespace}"]
        words += ["--validate=server", f"--kubeconfig={self.plane.kubeconfig(user)}", "-f", "-", *options]
        result = run.invoke(app, words, input="\n".join(map(json.dumps, bodies)))
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        return result.exit_code, result.stderr


@pytest.fixture
def asked(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Asked:
    return Asked(control_plane, namespace, tmp_path)


@pytest.fixture
def trainings(control_plane: ControlPlane) -> Iterator[None]:
    """A kind of another project, by its CustomResourceDefinition."""
    place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    control_plane.api.post(place, DEFINITION)

    def is_served() -> bool:
        found = control_plane.api.get(f"{place}/trainings.example.com")["status"]["conditions"] or ()
        return any((each["type"], each["status"]) == ("Established", "True") for each in found)

    try:
        control_plane.wait(is_served, "the kind Training to be served")
        yield
    finally:
        control_plane.api.delete(f"{place}/trainings.example.com")


def test_what_an_api_server_takes_is_placed(asked: Asked) -> None:
    """Nothing of it is stored."""
    assert asked.about(POD, DEPLOYMENT, MOUNTING, JOB, CRON_JOB) == (0, "")
    assert asked.plane.api.get(f"/apis/apps/v1/namespaces/{asked.namespace}/deployments")["items"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (changed(DEPLOYMENT, "spec.replica", 3), "Deployment/w: spec.replica: unknown field"),
        (
            changed(DEPLOYMENT, "spec.template.spec.containers.0.ports", [{"containerPort": 70_000}]),
            "Deployment/w: spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 70000",
        ),
        (
            changed(DEPLOYMENT, "spec.template.spec.serviceAccountName", "other"),
            'Deployment/w: spec.template: error looking up service account NS/other: serviceaccount "other" not found',
        ),
        (changed(DEPLOYMENT, "spec.selector.matchLabels.app", "y"), "`selector` does not match template `labels`"),
        (changed(CRON_JOB, "spec.schedule", "never"), "CronJob/w: spec.schedule: Invalid value"),
        ({**POD, "apiVersion": "example.org/v1", "kind": "Absent"}, "the cluster does not serve it"),
    ],
    ids=["field", "value", "pod", "selector", "schedule", "kind"],
)
def test_what_an_api_server_refuses_is_refused_with_its_field(asked: Asked, body: Json, said: str) -> None:
    code, told = asked.about(body)
    assert (code, said.replace("NS", asked.namespace) in told) == (2, True), told
    assert "standard input, document 1: " in told


def test_a_change_of_what_is_there_is_judged_as_a_change(asked: Asked) -> None:
    place = f"/apis/batch/v1/namespaces/{asked.namespace}/jobs"
    asked.plane.api.post(place, changed(JOB, "spec.suspend", True))
    assert asked.about(JOB) == (0, "")
    code, told = asked.about(changed(JOB, "spec.template.spec.containers.0.image", "registry.example.com/a:2"))
    assert (code, "Job/w: spec.template" in told, "field is immutable" in told) == (2, True, True), told
    assert len(told) < 600


@pytest.mark.usefixtures("trainings")
def test_a_kind_of_another_project_is_judged_by_its_definition(asked: Asked) -> None:
    assert asked.about(TRAINING) == (0, "")
    code, told = asked.about(changed(TRAINING, "spec.workers", 9))
    assert (code, "Training/t: spec.workers: Invalid value: 9" in told) == (2, True), told
    code, told = asked.about(changed(TRAINING, "spec.wrkrs", 1))
    assert (code, "Training/t: spec.wrkrs: unknown field" in told) == (2, True), told
    code, told = asked.about(changed(TRAINING, "spec.template.spec.containers.0.name", "A_b"))
    assert (code, "Training/t: spec.template.spec.containers[0].name: Invalid value" in told) == (2, True), told


def test_who_lacks_the_right_is_told_once(asked: Asked) -> None:
    """And the objects are judged as without a cluster."""
    code, told = asked.about(POD, DEPLOYMENT, JOB, user="nobody-in-particular")
    assert (code, told.count("note: ")) == (0, 1), told
    assert "Pod/w and 2 more are judged without the API server: " in told.replace("\n", " ")
    code, told = asked.about(changed(POD, "spec.nodeSelectr", {}), user="nobody-in-particular")
    assert (code, "did you mean nodeSelector?" in told) == (2, True), told


def test_what_comes_with_the_files_is_not_missing(asked: Asked) -> None:
    """An API server does not have it yet, and kubectl apply creates it first."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made-by-the-files"}}
    own = changed(changed(POD, "spec.serviceAccountName", "other"), "metadata.name", "own")
    there = changed(POD, "metadata.namespace", "made-by-the-files")
    code, told = asked.about(made, account, own, there)
    assert (code, "judged without the API server: what it needs is in the files" in told.replace("\n", " ")) == (
        0,
        True,
    )
