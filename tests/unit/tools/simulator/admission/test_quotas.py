"""Pods beyond a ResourceQuota of the same files are refused, as an API server refuses them."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import Expansion, expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import CRON_JOB, DAEMON_SET, DEPLOYMENT, MEM, POD, STATEFUL_SET, Json, changed, pod_template
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

SCOPED = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}

SERVICE: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s"},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]},
}
CLAIM: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "c"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
}

OF_GOLD = "gold.storageclass.storage.k8s.io/"
GOLD = changed(CLAIM, "spec.storageClassName", "gold")
TEMPLATE = "spec.volumeClaimTemplates.0.spec"

EPHEMERAL: Json = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM["spec"]}}}
WITH_CLAIM = changed(
    changed(STATEFUL_SET, "spec.replicas", 3),
    "spec.volumeClaimTemplates",
    [{"metadata": {"name": "d"}, "spec": CLAIM["spec"]}],
)
JOB_SET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "w"},
    "spec": {"replicatedJobs": [{"name": "a", "replicas": 4, "template": {"spec": {"template": pod_template()}}}]},
}
OF_RUNTIME = changed(
    changed(POD, "spec.runtimeClassName", "r"), "spec.containers.0.resources", {"limits": {"cpu": "500m"}}
)
RUNTIME: Json = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "r"},
    "handler": "r",
    "overhead": {"podFixed": {"cpu": 1, "memory": "1Gi"}},
}


CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
ACCOUNT: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
HUGE = changed(POD, "spec.containers.0.resources.limits", {"hugepages-2Mi": "4Mi", "memory": "1Gi", "cpu": 1})
DISK_SPACE: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIStorageCapacity",
    "metadata": {"name": "c"},
    "storageClassName": "x",
}


def quota(hard: Json, **more: object) -> Json:
    named = {"name": "q", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": named, "spec": {"hard": hard, **more}}


def expanded(tmp_path: Path, *bodies: Json) -> Expansion:
    return expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests, [])


@pytest.mark.parametrize(
    "hard",
    [
        {"pods": 2},
        {"count/pods": "2"},
        {f"requests.{MEM}": 4},
        {"requests.cpu": 1, "cpu": "1000m", "memory": "2Gi", "requests.memory": "2048Mi"},
        {"services": 0, "count/deployments.apps": 1, MEM: 0, "requests.storage": 0, f"limits.{MEM}": 4},
    ],
    ids=str,
)
def test_what_is_allowed_is_taken(tmp_path: Path, hard: Json) -> None:
    requests = {"cpu": "500m", "memory": "1Gi"}
    body = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources.requests", requests)
    found = expanded(tmp_path, quota(hard), body)
    assert len(found.pods) == 2
    assert "only what is in the files is counted" in str(found.notes[0])


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (
            {"pods": 1},
            r'ResourceQuota/q: spec.hard\["pods"\]: exceeded quota: the files. pods in default are 2, and 1 may be',
        ),
        ({"count/pods": "0"}, "are 2, and 0 may be"),
        ({f"requests.{MEM}": 3}, r'hard\["requests.aliyun.com/gpu-mem"\]: .* request 4, and 3 may be'),
        ({"cpu": "999m"}, "request 1000m, and 999m may be"),
        ({"requests.memory": "2047Mi"}, "request 2147483648, and 2047Mi may be"),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_more_is_refused(tmp_path: Path, hard: Json, said: str, order: int) -> None:
    requests = {"cpu": "500m", "memory": "1Gi"}
    body = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources.requests", requests)
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, *[quota(hard), body][::order])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.namespace", "other"),
        ("spec.scopes", ["NotTerminating"]),
        ("spec.scopeSelector", SCOPED["scopeSelector"]),
    ],
)
def test_other_pods_are_not_counted(tmp_path: Path, path: str, value: object) -> None:
    assert len(expanded(tmp_path, changed(quota({"pods": 1}), path, value), DEPLOYMENT).pods) == 2


@pytest.mark.parametrize(
    ("hard", "lacking"),
    [
        ({"requests.cpu": 9}, "requests.cpu"),
        ({"cpu": 9}, "cpu"),
        ({"limits.memory": "9Gi"}, "limits.memory"),
    ],
)
def test_pods_say_what_a_quota_counts(tmp_path: Path, hard: Json, lacking: str) -> None:
    with pytest.raises(ManifestError, match=rf"failed quota: pod default/w-\w+ must specify {lacking} for: c$"):
        expanded(tmp_path, quota(hard), DEPLOYMENT)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.containers.0.resources.limits.cpu", 0),
        ("spec.containers.0.resources", {"requests": {"cpu": 1}}),
        ("spec.resources", {"requests": {"cpu": 1}}),
        ("metadata.namespace", "other"),
        ("metadata.uid", "u"),
    ],
)
def test_pods_that_say_it_are_taken(tmp_path: Path, path: str, value: object) -> None:
    assert len(expanded(tmp_path, quota({"requests.cpu": 9}), changed(POD, path, value)).pods) == 1


def test_a_limit_range_may_say_it(tmp_path: Path) -> None:
    named = {"name": "l", "namespace": "default"}
    spec = {"limits": [{"type": "Container", "defaultRequest": {"cpu": 1}}]}
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": named, "spec": spec}
    assert len(expanded(tmp_path, quota({"requests.cpu": 9}), limits, DEPLOYMENT).pods) == 2


@pytest.mark.parametrize(
    ("hard", "body", "said"),
    [
        ({"limits.cpu": "1"}, changed(POD, "spec.containers.0.resources.limits", {"cpu": 2}), "have limits of 2000m"),
        ({"limits.memory": 1}, changed(POD, "spec.resources", {"limits": {"memory": 2}}), "have limits of 2"),
        ({"count/deployments.apps": 0}, DEPLOYMENT, "what the files have of it in default is 1, and 0 may be"),
        (
            {"configmaps": 1},
            CONFIG_MAP,
            "in default with kube-root-ca.crt, which each namespace has, is 2, and 1 may be",
        ),
        ({"count/serviceaccounts": 1}, ACCOUNT, "in default with default, which each namespace has, is 2"),
        ({"hugepages-2Mi": "2Mi"}, HUGE, "request 4194304, and 2Mi may be"),
        ({"count/endpoints": 0}, {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e"}}, "is 1"),
        ({"count/csistoragecapacities.storage.k8s.io": 0}, DISK_SPACE, "is 1"),
        ({"count/resourcequotas": 0}, POD, "is 1"),
        ({"services.nodeports": 1}, SERVICE, "is 2"),
        ({"services.loadbalancers": 0}, SERVICE, "is 1"),
        ({"requests.storage": "1Gi"}, CLAIM, "is 2147483648, and 1Gi may be"),
        ({f"{OF_GOLD}persistentvolumeclaims": 0}, GOLD, "is 1, and 0 may be"),
        ({f"{OF_GOLD}requests.storage": "1Gi"}, GOLD, "is 2147483648, and 1Gi may be"),
    ],
    ids=str,
)
def test_objects_and_limits_are_counted_too(tmp_path: Path, hard: Json, body: Json, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, quota(hard), body)


def test_a_pod_that_is_resized_counts_with_what_it_has(tmp_path: Path) -> None:
    """As ``PodUsageFunc`` of pkg/quota/v1/evaluator/core counts it."""
    running = changed(changed(POD, "metadata.uid", "u"), "spec.nodeName", "n")
    running = changed(running, "spec.containers.0.resources.requests", {"cpu": "1"})
    assert expanded(tmp_path, quota({"requests.cpu": 3}), running)
    held = {"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
    status = {"containerStatuses": [{**held, "resources": {"requests": {"cpu": "4"}}}]}
    with pytest.raises(ManifestError, match="request 4000m, and 3 may be"):
        expanded(tmp_path, quota({"requests.cpu": 3}), changed(running, "status", status))


@pytest.mark.parametrize(
    ("hard", "body", "most"),
    [
        ({"persistentvolumeclaims": None}, WITH_CLAIM, 3),
        ({"count/persistentvolumeclaims": None}, changed(POD, "spec.volumes", [EPHEMERAL]), 1),
        ({"requests.storage": None}, WITH_CLAIM, 3 * 2**31),
        ({f"{OF_GOLD}persistentvolumeclaims": None}, changed(WITH_CLAIM, f"{TEMPLATE}.storageClassName", "gold"), 3),
        ({f"{OF_GOLD}persistentvolumeclaims": None}, WITH_CLAIM, 0),
        ({"persistentvolumeclaims": None}, changed(DEPLOYMENT, "spec.template.spec.volumes", [EPHEMERAL]), 2),
        ({"count/replicasets.apps": None}, DEPLOYMENT, 1),
        ({"count/controllerrevisions.apps": None}, STATEFUL_SET, 1),
        ({"count/controllerrevisions.apps": None}, DAEMON_SET, 1),
        ({"count/jobs.batch": None}, JOB_SET, 4),
        ({"count/jobs.batch": None}, CRON_JOB, 1),
        ({"count/jobs.batch": None}, changed(CRON_JOB, "spec.suspend", True), 0),
    ],
    ids=str,
)
def test_what_controllers_make_is_counted(tmp_path: Path, hard: Json, body: Json, most: int) -> None:
    """As an API server counts it when they make it: pods whose claim it refuses never start."""
    (name,) = hard
    assert expanded(tmp_path, quota({name: most}), body)
    if most:
        with pytest.raises(ManifestError, match=f"what the files have of it in default is {most}, and {most - 1} may"):
            expanded(tmp_path, quota({name: most - 1}), body)


def test_a_claim_that_a_stateful_set_finds_is_made_once(tmp_path: Path) -> None:
    there = changed(CLAIM, "metadata.name", "d-w-1")
    assert expanded(tmp_path, quota({"persistentvolumeclaims": 3}), WITH_CLAIM, there)


def test_what_is_stored_has_been_made(tmp_path: Path) -> None:
    stored = changed(DEPLOYMENT, "metadata.uid", "u")
    assert expanded(tmp_path, quota({"count/replicasets.apps": 0}), stored)


def test_a_runtimes_overhead_counts_of_what_is_limited(tmp_path: Path) -> None:
    assert expanded(tmp_path, quota({"limits.cpu": "1500m"}), RUNTIME, OF_RUNTIME)
    with pytest.raises(ManifestError, match="have limits of 1500m, and 1 may be"):
        expanded(tmp_path, quota({"limits.cpu": 1}), RUNTIME, OF_RUNTIME)


@pytest.mark.parametrize(("kind", "name"), [(POD, "w-v"), (STATEFUL_SET, "w-0-v")])
def test_a_claim_that_was_not_made_for_the_pod_keeps_it_waiting(tmp_path: Path, kind: Json, name: str) -> None:
    at = "spec" if kind is POD else "spec.template.spec"
    body, there = changed(kind, f"{at}.volumes", [EPHEMERAL]), changed(CLAIM, "metadata.name", name)
    with pytest.raises(ManifestError, match=rf"{at}\.volumes\[0\]\.name: the pod .* waits for ever, .*claim {name} of"):
        expanded(tmp_path, body, there)
    assert expanded(tmp_path, body, changed(there, "metadata.namespace", "other"))


@pytest.mark.parametrize(
    ("hard", "bodies"),
    [
        ({"configmaps": 0}, [POD]),
        ({"configmaps": 1}, [changed(CONFIG_MAP, "metadata.name", "kube-root-ca.crt")]),
        ({"count/serviceaccounts": 2}, [ACCOUNT, changed(ACCOUNT, "metadata.name", "default")]),
    ],
    ids=str,
)
def test_what_each_namespace_has_is_no_second_one(tmp_path: Path, hard: Json, bodies: list[Json]) -> None:
    expanded(tmp_path, quota(hard), *bodies)
