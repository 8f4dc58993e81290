"""Objects whose controllers make pods, although something in them would be refused elsewhere."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import Expansion, expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import CLAIMING, CRON_JOB, DEPLOYMENT, JOB, REPLICATION_CONTROLLER, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")


def expanded(tmp_path: Path, body: Json) -> Expansion:
    return expand(load_text(tmp_path, json.dumps(body)).manifests, [])


@pytest.mark.parametrize(("length", "noted"), [(242, 0), (243, 1), (253, 1)])
def test_a_long_name_is_cut_for_the_replica_set(tmp_path: Path, length: int, noted: int) -> None:
    found = expanded(tmp_path, changed(DEPLOYMENT, "metadata.name", "a" * length))
    assert len(found.pods) == 2
    assert len([each for each in found.notes if "before Kubernetes 1.34 a Deployment" in str(each)]) == noted


@pytest.mark.parametrize("body", [JOB, REPLICATION_CONTROLLER], ids=lambda body: body["kind"])
def test_overhead_of_nothing_in_a_template_is_none(tmp_path: Path, body: Json) -> None:
    assert expanded(tmp_path, changed(body, "spec.template.spec.overhead", {})).pods
    with pytest.raises(ManifestError, match="Pod Overhead set without corresponding RuntimeClass"):
        expanded(tmp_path, changed(body, "spec.template.spec.overhead", {"cpu": "1"}))


def test_the_former_name_of_the_service_account_is_read(tmp_path: Path) -> None:
    path = "spec.template.spec.serviceAccount"
    assert expanded(tmp_path, changed(JOB, path, "a.b")).pods
    with pytest.raises(ManifestError, match=r"spec\.template\.spec\.serviceAccount: Invalid value"):
        expanded(tmp_path, changed(JOB, path, "A B"))
    named = changed(JOB, "spec.template.spec.serviceAccountName", "a")
    assert expanded(tmp_path, changed(named, path, "A B")).pods


OWNERS = [{"apiVersion": "v1", "kind": "Event", "name": "x", "uid": ""}]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (DEPLOYMENT, "spec.template.metadata.ownerReferences"),
        (CRON_JOB, "spec.jobTemplate.metadata.ownerReferences"),
        (CRON_JOB, "spec.jobTemplate.spec.template.metadata.ownerReferences"),
    ],
    ids=["Deployment", "CronJob's Job", "CronJob's pod"],
)
def test_owners_in_a_template_are_nobodys(tmp_path: Path, body: Json, path: str) -> None:
    assert expanded(tmp_path, changed(body, path, OWNERS)).pods


def test_jobs_have_labels_and_annotations_of_their_template_only(tmp_path: Path) -> None:
    path = "spec.jobTemplate.metadata"
    assert expanded(tmp_path, changed(CRON_JOB, path, {"finalizers": ["a b"]})).pods
    for field in ("labels", "annotations"):
        with pytest.raises(ManifestError, match=rf"jobTemplate\.metadata\.{field}"):
            expanded(tmp_path, changed(CRON_JOB, path, {field: {"a b": "c"}}))
    with pytest.raises(ManifestError, match="finalizers"):
        expanded(tmp_path, changed(CRON_JOB, "spec.jobTemplate.spec.template.metadata.finalizers", ["a b"]))


@pytest.mark.parametrize(
    "volumes",
    [
        [{"name": "NAME", "emptyDir": {}}, {"name": "NAME", "emptyDir": {}}],
        [{"name": "NAME", "hostPath": {"path": ".."}}, {"name": "other", "emptyDir": {}}],
    ],
    ids=["twice", "wrong"],
)
def test_a_claim_takes_the_place_of_volumes_of_its_name(tmp_path: Path, volumes: list[Json]) -> None:
    name = CLAIMING["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    written = json.loads(json.dumps(volumes).replace("NAME", name))
    assert expanded(tmp_path, changed(CLAIMING, "spec.template.spec.volumes", written)).pods
    more = [*written, {"name": written[-1]["name"] + "x", "emptyDir": {}}] * 2
    with pytest.raises(ManifestError, match=r'name: Duplicate value: "(other|data)x"'):
        expanded(tmp_path, changed(CLAIMING, "spec.template.spec.volumes", more))


@pytest.mark.parametrize("body", [DEPLOYMENT, JOB, CLAIMING], ids=lambda body: body["kind"])
def test_a_note_names_owners_that_the_cluster_has_to_have(tmp_path: Path, body: Json) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1-2"}
    found = expanded(tmp_path, changed(body, "metadata.ownerReferences", [owner]))
    said = "metadata.ownerReferences: without an object of one of these UIDs the cluster deletes it again"
    assert [str(each).partition(": ")[2] for each in found.notes if said in str(each)] != []
    assert not [each for each in expanded(tmp_path, body).notes if "ownerReferences" in str(each)]
    stored = changed(changed(body, "metadata.uid", "a-b"), "metadata.ownerReferences", [owner])
    assert not [each for each in expanded(tmp_path, stored).notes if "ownerReferences" in str(each)]
