"""Objects that an API server takes and whose controllers then make no pods."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import Expansion, expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import CLAIMING, CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, STATEFUL_SET, Json, changed, pod_template
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

JOB_SET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "w"},
    "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": pod_template("Never")}}}]},
}


def expanded(tmp_path: Path, body: Json) -> Expansion:
    return expand(load_text(tmp_path, json.dumps(body)).manifests, [])


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("labels", {"a b": "c"}, {"a": "c"}),
        ("annotations", {"a b": "c"}, {"a": "b c"}),
        ("finalizers", ["x y"], ["example.com/x"]),
    ],
)
def test_claims_have_the_metadata_of_their_template(tmp_path: Path, field: str, wrong: object, right: object) -> None:
    path = f"spec.volumeClaimTemplates.0.metadata.{field}"
    assert expanded(tmp_path, changed(CLAIMING, path, right)).pods
    with pytest.raises(ManifestError, match=rf"spec\.volumeClaimTemplates\[0\]\.metadata\.{field}"):
        expanded(tmp_path, changed(CLAIMING, path, wrong))


@pytest.mark.parametrize(
    ("body", "path"),
    [(JOB, "spec"), (CRON_JOB, "spec.jobTemplate.spec"), (JOB_SET, "spec.replicatedJobs.0.template.spec")],
    ids=["Job", "CronJob", "JobSet"],
)
def test_a_job_without_any_time_has_no_pod(tmp_path: Path, body: Json, path: str) -> None:
    assert expanded(tmp_path, changed(body, f"{path}.activeDeadlineSeconds", 1)).pods
    with pytest.raises(ManifestError, match="activeDeadlineSeconds: Invalid value: 0: the Job fails at once"):
        expanded(tmp_path, changed(body, f"{path}.activeDeadlineSeconds", 0))


@pytest.mark.parametrize(("body", "path"), [(JOB, "spec"), (CRON_JOB, "spec.jobTemplate.spec")], ids=["Job", "CronJob"])
@pytest.mark.parametrize(("manager", "noted"), [("example.com/a", 1), ("kubernetes.io/job-controller", 0)])
def test_a_note_names_another_controller_of_a_job(
    tmp_path: Path, body: Json, path: str, manager: str, noted: int
) -> None:
    found = expanded(tmp_path, changed(body, f"{path}.managedBy", manager))
    assert len([note for note in found.notes if f"managedBy: {manager} makes its pods, if any" in str(note)]) == noted
    assert len(found.pods) == 1


def test_a_cron_job_whose_day_never_comes_makes_no_job(tmp_path: Path) -> None:
    assert expanded(tmp_path, changed(CRON_JOB, "spec.schedule", "0 0 29 2 *")).pods
    with pytest.raises(ManifestError, match=r"spec\.schedule: .* never makes a Job"):
        expanded(tmp_path, changed(CRON_JOB, "spec.schedule", "0 0 30 2 *"))


def test_a_cron_job_without_any_time_to_start_makes_no_job(tmp_path: Path) -> None:
    assert expanded(tmp_path, changed(CRON_JOB, "spec.startingDeadlineSeconds", 1)).pods
    with pytest.raises(ManifestError, match=r"startingDeadlineSeconds: Invalid value: 0: .* never makes a Job"):
        expanded(tmp_path, changed(CRON_JOB, "spec.startingDeadlineSeconds", 0))


ROLLOUT: Json = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Rollout",
    "metadata": {"name": "w"},
    "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": pod_template()},
}


@pytest.mark.parametrize(
    ("body", "label"),
    [
        (DEPLOYMENT, "pod-template-hash"),
        (STATEFUL_SET, "statefulset.kubernetes.io/pod-name"),
        (DAEMON_SET, "controller-revision-hash"),
        (ROLLOUT, "rollouts-pod-template-hash"),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)
def test_selectors_of_labels_that_controllers_overwrite(tmp_path: Path, body: Json, label: str) -> None:
    """Kubernetes' controllers lose each pod or ReplicaSet that they make, and make the next one."""
    labels = {"app": "x", label: "mine"}
    body = changed(body, "spec.template.metadata.labels", labels)
    assert expanded(tmp_path, body) is not None
    exists = [{"key": label, "operator": "Exists"}]
    assert expanded(tmp_path, changed(body, "spec.selector", {"matchExpressions": exists})) is not None
    without = changed(body, "spec.template.metadata.labels", {"app": "x"})
    absent = {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}
    for wrong in (changed(body, "spec.selector", {"matchLabels": labels}), changed(without, "spec.selector", absent)):
        with pytest.raises(ManifestError, match=r"spec\.selector: .* its controller overwrites such a label"):
            expanded(tmp_path, wrong)
