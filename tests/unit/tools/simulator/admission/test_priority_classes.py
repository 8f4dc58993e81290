"""Priorities by PriorityClass, as a cluster writes them into pods."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.scenario import Scenario, load_scenario
from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError, load_manifests
from tests.manifests import DEPLOYMENT, POD, Json, changed
from tests.unit.tools.simulator.builders import write

pytestmark = pytest.mark.requirement("B4")

CLUSTER = "{apiVersion: gputile.io/v1alpha1, kind: Cluster, nodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]}"
CLASS: Json = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 7,
}


def loaded(tmp_path: Path, *bodies: Json) -> Scenario:
    text = "\n".join(map(json.dumps, bodies))
    return load_scenario([write(tmp_path, CLUSTER, "cluster.yaml")], [write(tmp_path, text)])


def of_class(body: Json, name: str) -> Json:
    template = "spec.template.spec" if body["kind"] == "Deployment" else "spec"
    return changed(body, f"{template}.priorityClassName", name)


@pytest.mark.parametrize(("name", "priority"), [("urgent", 7), ("system-node-critical", 2_000_001_000)])
@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
def test_pods_get_the_priority_of_their_class(tmp_path: Path, body: Json, name: str, priority: int) -> None:
    pods = loaded(tmp_path, of_class(body, name), CLASS).pending
    assert {pod.spec.priority for pod in pods} == {priority}


def test_a_class_that_no_file_has_counts_as_0_and_a_note_says_so(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, of_class(POD, "other"))
    assert [pod.spec.priority for pod in scenario.pending] == [None]
    assert [note.text for note in scenario.notes] == [
        'spec.priorityClassName: no file has the PriorityClass "other": its value counts as 0 here'
    ]


def test_another_priority_than_that_of_the_class_is_refused(tmp_path: Path) -> None:
    wrong = changed(of_class(POD, "urgent"), "spec.priority", 8)
    with pytest.raises(ManifestError, match=r'spec.priority: Forbidden: it is 8, and the PriorityClass "urgent" has 7'):
        loaded(tmp_path, wrong, CLASS)


@pytest.mark.parametrize(
    ("value", "rule"), [("high", "value: must be a whole number"), (2_000_000_000, "no more than")]
)
def test_a_class_without_a_value_that_can_be_used_is_refused(tmp_path: Path, value: object, rule: str) -> None:
    with pytest.raises(ManifestError, match=rule):
        loaded(tmp_path, POD, changed(CLASS, "value", value))


@pytest.mark.parametrize(("of_the_class", "of_the_pod"), [(None, "Never"), ("Never", "PreemptLowerPriority")])
def test_another_preemption_policy_than_that_of_the_class_is_refused(
    tmp_path: Path, of_the_class: str | None, of_the_pod: str
) -> None:
    urgent, pod = changed(CLASS, "preemptionPolicy", of_the_class), of_class(POD, "urgent")
    (stored,) = loaded(tmp_path, pod, urgent).pending
    assert stored.spec.preemption_policy == (of_the_class or "PreemptLowerPriority")
    with pytest.raises(ManifestError, match=rf"spec\.preemptionPolicy: Forbidden: it is {of_the_pod}"):
        loaded(tmp_path, changed(pod, "spec.preemptionPolicy", of_the_pod), urgent)


def test_pods_that_name_no_class_get_the_default_one(tmp_path: Path) -> None:
    default = changed(CLASS, "globalDefault", True)
    assert [pod.spec.priority for pod in loaded(tmp_path, POD, default).pending] == [7]
    pod = changed(POD, "spec.preemptionPolicy", "PreemptLowerPriority")
    with pytest.raises(ManifestError, match=r"spec\.preemptionPolicy: Forbidden"):
        loaded(tmp_path, pod, changed(default, "preemptionPolicy", "Never"))


def test_there_is_one_default(tmp_path: Path) -> None:
    default = changed(CLASS, "globalDefault", True)
    with pytest.raises(ManifestError, match="PriorityClass/other: globalDefault: Forbidden: urgent is already marked"):
        loaded(tmp_path, POD, default, changed(default, "metadata.name", "other"))


def test_there_is_one_default_in_what_comes_later_too(tmp_path: Path) -> None:
    default = changed(CLASS, "globalDefault", True)
    files = [write(tmp_path, json.dumps(each), f"{i}.json") for i, each in enumerate((default, POD))]
    before = expand(load_manifests(files).manifests, [])
    later = [changed(default, "metadata.name", "other"), changed(POD, "metadata.name", "q")]
    files = [write(tmp_path, json.dumps(each), f"{i}.json") for i, each in enumerate(later)]
    with pytest.raises(ManifestError, match="PriorityClass/other: globalDefault: Forbidden: urgent is already marked"):
        expand(load_manifests(files).manifests, [], beside=before)


def test_a_class_that_no_cluster_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r'spec\.priorityClassName: Forbidden: there can be no .* "system-mine"'):
        loaded(tmp_path, of_class(POD, "system-mine"))


def test_the_classes_of_a_cluster_may_be_in_the_files(tmp_path: Path) -> None:
    printed = changed(
        changed(CLASS, "metadata", {"name": "system-node-critical", "uid": "a-b"}), "value", 2_000_001_000
    )
    pods = loaded(tmp_path, of_class(POD, "system-node-critical"), printed).pending
    assert [pod.spec.priority for pod in pods] == [2_000_001_000]
