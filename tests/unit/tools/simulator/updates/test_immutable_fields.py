"""What cannot be changed of an object that is in the cluster, and what is no change of it."""

import copy
import json

import pytest

from gputile.tools.simulator.updates.differences import LAST_APPLIED
from gputile.tools.simulator.updates.immutable_fields import broken_changes, path_of, template_changes
from tests.immutable_changes import CHANGES, GATED, GATED_CHANGES, STORED, Change
from tests.manifests import DEPLOYMENT, GONE, JOB, POD, STATEFUL_SET, Json, changed

pytestmark = pytest.mark.requirement("B4")

DEFAULTED: Json = {"terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "nodeName": "n"}


def told(written: Json, stored: Json) -> list[str]:
    return [path for path, _ in broken_changes(written["kind"], written, stored)]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_changes_are_judged_as_by_an_api_server(change: Change) -> None:
    written = changed(STORED[change.kind], change.path, change.value)
    assert bool(told(written, STORED[change.kind])) is change.refused


@pytest.mark.parametrize("change", GATED_CHANGES, ids=str)
def test_a_gated_pod_may_only_be_narrowed(change: Change) -> None:
    assert bool(told(changed(GATED, change.path, change.value), GATED)) is change.refused
    free = changed(GATED, "spec.schedulingGates", GONE)
    assert told(changed(free, change.path, change.value), free) != []
    unbound = changed(GATED, "spec.affinity", GONE)
    assert told(GATED, unbound) == []


@pytest.mark.parametrize("body", STORED.values(), ids=lambda body: body["kind"])
def test_the_same_again_is_no_change(body: Json) -> None:
    assert told(body, body) == []


def test_the_field_is_named() -> None:
    body = changed(POD, "spec.containers.0.resources.limits", {"x.io/a": 2})
    (said,) = broken_changes("Pod", changed(body, "spec.containers.0.resources.limits", {"x.io/a": 3}), body)
    assert said[0] == 'spec.containers[0].resources.limits["x.io/a"]'
    assert "Forbidden: it is in the cluster, and this field of a Pod cannot be changed" in said[1]


def test_what_others_fill_in_is_no_change() -> None:
    stored = copy.deepcopy(POD)
    stored["spec"] |= DEFAULTED
    stored["spec"]["containers"] += [{"name": "sidecar", "image": "i"}]
    stored["spec"]["volumes"] = [{"name": "kube-api-access-x", "projected": {}}]
    stored["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    stored["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "500m"}
    written = changed(POD, "spec.containers.0.resources.requests", {"cpu": 0.5})
    assert told(written, stored) == []


def test_what_was_applied_before_and_is_written_no_more_is_taken_away() -> None:
    before = changed(POD, "spec.nodeSelector", {"zone": "a"})
    stored = copy.deepcopy(before)
    assert told(POD, stored) == []
    stored["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(before)}
    assert told(POD, stored) == ["spec.nodeSelector"]


@pytest.mark.parametrize("text", ["{", "[]", "5", "[" * 100_000])
def test_what_was_applied_before_may_not_be_readable(text: str) -> None:
    stored = changed(POD, "metadata.annotations", {LAST_APPLIED: text})
    assert told(POD, stored) == []


def test_a_suspended_job_may_go_elsewhere() -> None:
    stored = changed(JOB, "spec.suspend", True)
    moved = changed(JOB, "spec.template.spec.nodeSelector", {"zone": "a"})
    assert told(moved, stored) == []
    assert told(moved, JOB) == ["spec.template.spec.nodeSelector"]
    assert told(moved, {**stored, "status": {"startTime": "2026-01-01T00:00:00Z"}}) != []


@pytest.mark.parametrize(
    ("body", "path", "value", "replaced"),
    [
        (DEPLOYMENT, "spec.template.spec.containers.0.image", "j", True),
        (DEPLOYMENT, "spec.template.metadata.labels.more", "m", True),
        (DEPLOYMENT, "spec.replicas", 9, False),
        (STATEFUL_SET, "spec.template.spec.hostname", "h", True),
        (changed(STATEFUL_SET, "spec.updateStrategy.type", "OnDelete"), "spec.template.spec.hostname", "h", False),
        (JOB, "spec.template.spec.hostname", "h", False),
    ],
)
def test_pods_are_replaced_where_their_template_changes(body: Json, path: str, value: Json, replaced: bool) -> None:
    assert template_changes(body["kind"], changed(body, path, value), body) is replaced


@pytest.mark.parametrize(
    ("version", "kind", "path"),
    [
        ("v1", "Pod", "/api/v1/namespaces/n/pods/o"),
        ("batch/v1", "Job", "/apis/batch/v1/namespaces/n/jobs/o"),
        ("storage.k8s.io/v1", "StorageClass", "/apis/storage.k8s.io/v1/storageclasses/o"),
        ("example.com/v1", "Job", ""),
        ("batch/v1", "CronJob", ""),
    ],
)
def test_where_an_object_is(version: str, kind: str, path: str) -> None:
    assert path_of(version, kind, "n", "o") == path
    assert path_of(version, kind, "n", "") == ""


_TWICE: Json = {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "subPath": "b"}]}
_DNS: Json = {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]}
_ENV: Json = {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}


@pytest.mark.parametrize("fields", [_TWICE, _DNS, _ENV], ids=["volumeMounts", "ports", "env"])
def test_two_entries_of_one_name_are_no_change(fields: Json) -> None:
    body = copy.deepcopy(POD)
    body["spec"]["containers"][0] |= fields
    stored = copy.deepcopy(body)
    stored["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(body)}
    assert told(body, stored) == []
    field = next(iter(fields))
    fewer = changed(body, f"spec.containers.0.{field}", fields[field][:1])
    assert told(fewer, stored) == [f"spec.containers[0].{field}"]


def _applied(kind: str, path: str, value: object) -> tuple[Json, Json]:
    """Return an object without a field, and as it is stored after the field was applied."""
    without = STORED.get(kind) or {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}}
    before = changed(without, path, value)
    stored = copy.deepcopy(before)
    stored["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(before)}
    return without, stored


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Service", "spec.clusterIP", "10.0.0.9"),
        ("Service", "spec.clusterIP", "None"),
        ("Pod", "spec.restartPolicy", "Always"),
        ("Pod", "spec.terminationGracePeriodSeconds", 30),
        ("StatefulSet", "spec.podManagementPolicy", "OrderedReady"),
        ("PersistentVolumeClaim", "spec.volumeMode", "Filesystem"),
        ("StorageClass", "volumeBindingMode", "Immediate"),
    ],
)
def test_what_an_api_server_fills_in_again_may_be_left_out(kind: str, path: str, value: object) -> None:
    written, stored = _applied(kind, path, value)
    assert told(written, stored) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Pod", "spec.restartPolicy", "Never"),
        ("StatefulSet", "spec.podManagementPolicy", "Parallel"),
        ("PersistentVolumeClaim", "spec.volumeMode", "Block"),
        ("Job", "spec.completions", 3),
    ],
)
def test_what_no_api_server_fills_in_again_is_taken_away(kind: str, path: str, value: object) -> None:
    written, stored = _applied(kind, path, value)
    assert len(told(written, stored)) == 1


@pytest.mark.parametrize(("requests", "same"), [({"cpu": "1000m"}, True), ({"cpu": "500m"}, False)])
def test_requests_that_equal_the_limits_may_be_left_out(requests: Json, same: bool) -> None:
    body = changed(POD, "spec.containers.0.resources", {"limits": {"cpu": 1}})
    before = changed(body, "spec.containers.0.resources.requests", requests)
    stored = copy.deepcopy(before)
    stored["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(before)}
    assert (told(body, stored) == []) is same


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("i", "Always"),
        ("i:latest", "Always"),
        ("r.example.com:5000/i", "Always"),
        ("i:1", "IfNotPresent"),
        ("i@sha256:0", "IfNotPresent"),
        ("r.example.com:5000/i:1", "IfNotPresent"),
    ],
)
def test_how_an_image_is_pulled_follows_from_its_tag(image: str, policy: str) -> None:
    body = changed(POD, "spec.containers.0.image", image)
    for each in ("Always", "IfNotPresent"):
        before = changed(body, "spec.containers.0.imagePullPolicy", each)
        stored = copy.deepcopy(before)
        stored["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(before)}
        assert (told(body, stored) == []) is (each == policy)
