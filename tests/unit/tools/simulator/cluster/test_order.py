"""What ``kubectl apply`` has refused, since it comes before what it needs, is told."""

import pytest

from gputile.tools.simulator.cluster.order import order_notes
from gputile.tools.simulator.documents.manifests import Manifest, Origin
from tests.manifests import DEPLOYMENT, POD, Json, changed

pytestmark = pytest.mark.requirement("B4")


def made(api_version: str, kind: str) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "late"}}


NAMESPACE = made("v1", "Namespace")
PRIORITY = made("scheduling.k8s.io/v1", "PriorityClass")
RUNTIME = made("node.k8s.io/v1", "RuntimeClass")
THERE = changed(DEPLOYMENT, "metadata.namespace", "late")


def told(*bodies: Json) -> list[str]:
    found = [Manifest(Origin("f"), body["apiVersion"], body["kind"], body) for body in bodies]
    return [note.text.partition(" comes after it")[0] for note in order_notes(found)]


@pytest.mark.parametrize(
    ("body", "need", "expected"),
    [
        (THERE, NAMESPACE, ["its Namespace/late"]),
        (changed(POD, "spec.priorityClassName", "late"), PRIORITY, ["its PriorityClass/late"]),
        (changed(POD, "spec.runtimeClassName", "late"), RUNTIME, ["its RuntimeClass/late"]),
        (changed(DEPLOYMENT, "spec.template.spec.priorityClassName", "late"), PRIORITY, []),
        (changed(POD, "spec.priorityClassName", "other"), PRIORITY, []),
        (changed(THERE, "metadata.uid", "u"), NAMESPACE, []),
        ({**POD, "metadata": 5, "spec": None}, NAMESPACE, []),
    ],
)
def test_each_need_is_told_once(body: Json, need: Json, expected: list[str]) -> None:
    assert told(body, body, need) == expected
    assert told(need, body) == []


@pytest.mark.parametrize("kind", ["LimitRange", "ResourceQuota"])
def test_rules_that_come_after_a_pod_are_told(kind: str) -> None:
    """An API server applies them to what comes later."""
    rule = made("v1", kind)
    assert told(POD, POD, rule) == [f"the {kind} late"]
    assert told(rule, POD) == []
    assert told(DEPLOYMENT, rule) == [], "its pods are made later"
    assert told(changed(POD, "metadata.namespace", "other"), rule) == []
    assert told(changed(POD, "metadata.uid", "u"), rule) == []
