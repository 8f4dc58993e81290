"""What a RuntimeClass in the files gives to its pods, as a cluster writes it into them."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.admission.runtime_classes import written_runtimes
from gputile.tools.simulator.cluster.scenario import Scenario, load_scenario
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import DEPLOYMENT, GONE, POD, Json, changed
from tests.unit.tools.simulator.builders import load_text, write

pytestmark = pytest.mark.requirement("B4")

CLUSTER = "{apiVersion: gputile.io/v1alpha1, kind: Cluster, nodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]}"
TOLERATION = {"key": "sandbox", "operator": "Exists"}
CLASS: Json = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m"}},
    "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [TOLERATION]},
}


def loaded(tmp_path: Path, *bodies: Json) -> Scenario:
    text = "\n".join(map(json.dumps, bodies))
    return load_scenario([write(tmp_path, CLUSTER, "cluster.yaml")], [write(tmp_path, text)])


def of_class(body: Json, **fields: object) -> Json:
    path = "spec.template.spec" if body["kind"] == "Deployment" else "spec"
    for field, value in {"runtimeClassName": "kata", **fields}.items():
        body = changed(body, f"{path}.{field}", value)
    return body


@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
@pytest.mark.parametrize("order", [1, -1])
def test_pods_get_what_their_class_has(tmp_path: Path, body: Json, order: int) -> None:
    own = of_class(body, nodeSelector={"disk": "fast"}, tolerations=[{"key": "a", "operator": "Exists"}])
    for pod in loaded(tmp_path, *[CLASS, own][::order]).pending:
        assert pod.spec.overhead == {"cpu": "250m"}
        assert pod.spec.node_selector == {"disk": "fast", "sandbox": "yes"}
        assert {each.key for each in pod.spec.tolerations} >= {"a", "sandbox"}


def test_what_the_pod_says_itself_may_be_the_same(tmp_path: Path) -> None:
    same = of_class(POD, overhead={"cpu": 0.25}, nodeSelector={"sandbox": "yes"}, tolerations=[TOLERATION])
    (pod,) = loaded(tmp_path, same, CLASS).pending
    assert [each.key for each in pod.spec.tolerations].count("sandbox") == 1


@pytest.mark.parametrize(
    ("fields", "of_the_class", "said"),
    [
        (
            {"overhead": {"cpu": "1"}},
            CLASS["overhead"],
            r'spec.overhead: Forbidden: it is not the overhead of the .*"kata',
        ),
        ({"overhead": {"cpu": "1"}}, GONE, "spec.overhead: Forbidden: it is not the overhead"),
        (
            {"nodeSelector": {"sandbox": "no"}},
            CLASS["overhead"],
            r'spec.nodeSelector\["sandbox"\]: Forbidden: conflict: it is "no", and the RuntimeClass "kata" has "yes"',
        ),
    ],
)
def test_what_differs_from_the_class_is_refused(tmp_path: Path, fields: Json, of_the_class: Json, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        loaded(tmp_path, of_class(POD, **fields), changed(CLASS, "overhead", of_the_class))


@pytest.mark.parametrize(("handler", "names"), [("kata", ["kata"]), ("Ka_ta", [])])
def test_a_class_that_a_cluster_refuses_gives_nothing(tmp_path: Path, handler: str, names: list[str]) -> None:
    manifests = load_text(tmp_path, json.dumps(changed(CLASS, "handler", handler))).manifests
    assert [*written_runtimes(manifests)] == names


def test_a_class_that_no_file_has_gives_nothing_and_a_note_says_so(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, of_class(POD))
    assert [pod.spec.overhead for pod in scenario.pending] == [{}]
    assert [note.text for note in scenario.notes] == [
        'spec.runtimeClassName: no file has the RuntimeClass "kata": its overhead, nodeSelector and tolerations '
        "are not known"
    ]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("overhead.podFixed", {"cpu": "much"}, "RuntimeClass/kata: overhead.podFixed"),
        ("scheduling", [], "RuntimeClass/kata: scheduling: must be a mapping"),
        ("metadata.name", ["kata"], "metadata.name: must be a string"),
    ],
)
def test_a_class_that_is_wrong_is_refused_itself(tmp_path: Path, path: str, value: object, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        loaded(tmp_path, of_class(POD), changed(CLASS, path, value))
