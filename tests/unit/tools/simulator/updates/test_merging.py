"""What a manifest does not say stays as it is in the cluster, as ``kubectl apply`` leaves it."""

import json

import pytest

from gputile.tools.simulator.documents.manifests import Manifest, Origin
from gputile.tools.simulator.updates.differences import LAST_APPLIED
from gputile.tools.simulator.updates.merging import merged
from gputile.tools.simulator.updates.stored_objects import StoredObjects
from tests.manifests import DEPLOYMENT, GONE, POD, STATEFUL_SET, Json, changed

pytestmark = pytest.mark.requirement("B4")

SPEC = "spec.template.spec"
BOTH = [{"name": "A", "value": "x", "valueFrom": {}}]
WITHOUT = changed(DEPLOYMENT, "spec.replicas", GONE)


def both(written: Json, stored: Json) -> Json:
    body: Json = merged(Manifest(Origin("f"), written["apiVersion"], written["kind"], written), stored).body
    return body


def applied(body: Json, before: Json) -> Json:
    return changed(body, "metadata.annotations", {LAST_APPLIED: json.dumps(before)})


def test_what_was_never_said_stays() -> None:
    stored = applied(changed(DEPLOYMENT, "spec.replicas", 7), WITHOUT)
    assert both(WITHOUT, stored)["spec"]["replicas"] == 7
    assert both(changed(DEPLOYMENT, "spec.replicas", 3), stored)["spec"]["replicas"] == 3


def test_what_was_said_before_goes() -> None:
    assert "replicas" not in both(WITHOUT, applied(DEPLOYMENT, DEPLOYMENT))["spec"]


@pytest.mark.parametrize(
    ("path", "stored", "written", "expected"),
    [
        (
            "containers",
            [{"name": "c", "image": "i"}, {"name": "gpu", "image": "i"}],
            [{"name": "c", "image": "j"}],
            [{"name": "c", "image": "j"}, {"name": "gpu", "image": "i"}],
        ),
        ("nodeSelector", {"a": "b"}, {"c": "d"}, {"a": "b", "c": "d"}),
        ("tolerations", [{"key": "a"}], [{"key": "b"}], [{"key": "b"}]),
        ("volumes", [{"name": "v", "emptyDir": {}}], [{"name": "v", "hostPath": {"path": "/p"}}], None),
        ("containers.0.env", [{"name": "A", "value": "x"}], [{"name": "A", "valueFrom": {}}], BOTH),
        ("containers.0.ports", [{"containerPort": 1}] * 2, [{"containerPort": 2}], [{"containerPort": 2}]),
    ],
)
def test_lists_are_merged_by_their_keys(path: str, stored: object, written: object, expected: object) -> None:
    """Of an object without the annotation, as ``kubectl create`` leaves it, nothing goes that is not replaced."""
    place = f"{SPEC}.{path}"
    spec = both(changed(DEPLOYMENT, place, written), changed(DEPLOYMENT, place, stored))["spec"]["template"]["spec"]
    found = spec["containers"][0][path.rpartition(".")[2]] if "." in path else spec[path]
    assert found == (written if expected is None else expected)


def test_a_strategy_is_replaced_and_a_stateful_sets_is_not() -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    other = changed(DEPLOYMENT, "spec.strategy", {"type": "Recreate"})
    assert both(other, changed(DEPLOYMENT, "spec.strategy", rolling))["spec"]["strategy"] == {"type": "Recreate"}
    stored = changed(STATEFUL_SET, "spec.updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    kept = both(changed(STATEFUL_SET, "spec.updateStrategy", {"type": "OnDelete"}), stored)["spec"]["updateStrategy"]
    assert kept == {"type": "OnDelete", "rollingUpdate": {"partition": 0}}


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (POD, changed(POD, "spec.nodeName", "n")),
        (DEPLOYMENT, changed(DEPLOYMENT, "spec.newer", 1)),
        (changed(DEPLOYMENT, "spec.newer", 1), DEPLOYMENT),
    ],
    ids=["a Pod", "a field of a newer server", "a field that does not exist"],
)
def test_others_are_taken_as_they_are_written(written: Json, stored: Json) -> None:
    assert both(written, stored) is written


def test_a_number_of_pods_that_stays_is_told() -> None:
    place = "/apis/apps/v1/namespaces/default/deployments/w"
    known = StoredObjects(bodies={place: applied(changed(DEPLOYMENT, "spec.replicas", 7), WITHOUT)})
    (one,), (note,) = known.merged([Manifest(Origin("f"), "apps/v1", "Deployment", WITHOUT)])
    assert (one.body["spec"]["replicas"], note.text) == (7, "spec.replicas stays 7, as in the cluster")


def test_keys_that_somebody_else_wrote_stay() -> None:
    written = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "new"}}
    before = changed(written, "data", {"a": "old", "gone": "x"})
    stored = applied(changed(before, "data.by-others", "y"), before)
    assert both(written, changed(stored, "binaryData", {"b": "eA=="})) == {
        **written,
        "data": {"a": "new", "by-others": "y"},
        "binaryData": {"b": "eA=="},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c"}, "stringData": {"a": "x"}}
    assert both(secret, {**secret, "data": {"z": "eA=="}}) == {**secret, "data": {"z": "eA=="}}
