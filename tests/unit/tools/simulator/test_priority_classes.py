"""Priorities by PriorityClass, as a cluster writes them into pods."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.scenario import Scenario, load_scenario
from tests.unit.tools.simulator.builders import write
from tests.unit.tools.simulator.manifests import DEPLOYMENT, POD, Json, changed

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
        'spec.priorityClassName: the PriorityClass "other" is unknown: its value is assumed to be 0'
    ]


def test_pods_that_name_no_class_get_the_default_one(tmp_path: Path) -> None:
    default = changed(CLASS, "globalDefault", True)
    assert [pod.spec.priority for pod in loaded(tmp_path, POD, default).pending] == [7]
    (pod,) = loaded(tmp_path, POD, changed(default, "preemptionPolicy", "Never")).pending
    assert pod.spec.preemption_policy == "Never"
