"""A PodGroup of the files is held against what its CustomResourceDefinition demands."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import Scenario
from tests.unit.tools.simulator.builders import scenario
from tests.unit.tools.simulator.manifests import Json, changed

POD_GROUP: Json = {
    "apiVersion": "scheduling.x-k8s.io/v1alpha1",
    "kind": "PodGroup",
    "metadata": {"name": "g"},
    "spec": {"minMember": 2, "scheduleTimeoutSeconds": 5, "minResources": {"cpu": 1}},
}


def loaded(tmp_path: Path, body: Json) -> Scenario:
    return scenario(tmp_path, json.dumps(body))


@pytest.mark.requirement("B4", "M13")
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("apiVersion", "scheduling.x-k8s.io/v1beta7", "no matches for kind .*; PodGroup is in scheduling.x-k8s.io/v1a"),
        ("spec.minMembers", 2, "spec.minMembers: unknown field; did you mean minMember"),
        ("specs", {}, "specs: unknown field; did you mean spec"),
        ("metadata.labls", {"a": "b"}, "metadata.labls: unknown field"),
    ],
)
def test_a_pod_group_is_checked_as_its_definition_does(tmp_path: Path, path: str, value: object, said: str) -> None:
    assert loaded(tmp_path, POD_GROUP).groups.sizes == {("default", "g"): 2}
    with pytest.raises(ManifestError, match=f"PodGroup/.*{said}"):
        loaded(tmp_path, changed(POD_GROUP, path, value))
