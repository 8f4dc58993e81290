"""``simulate --from-cluster``: what becomes of the cluster's objects when their manifests are applied again."""

import json
from typing import Any

import pytest

from gputile.tools.simulator.updates.differences import LAST_APPLIED
from tests.fakes.apiserver import FakeApiServer, Request
from tests.manifests import DEPLOYMENT, GONE, JOB, MEM, POD, STATEFUL_SET, Json, changed
from tests.unit.cli.reads.test_running import simulated, there

pytestmark = pytest.mark.requirement("B4")


RANGES = "/api/v1/namespaces/default/limitranges"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
IMAGE = "spec.template.spec.containers.0.image"
LIMITS = "spec.template.spec.containers.0.resources.limits"


def stored(server: FakeApiServer, body: Json, applied: Json | None = None, **status: Any) -> None:
    """Have an object in the cluster, as the manifest ``applied`` made it; by default itself."""
    text = json.dumps(applied if applied is not None else body)
    path = f"/apis/{body['apiVersion']}/namespaces/default/{body['kind'].lower()}s"
    metadata = {**body["metadata"], "namespace": "default", "annotations": {LAST_APPLIED: text}}
    server.store.setdefault(path, {})[body["metadata"]["name"]] = {**body, "metadata": metadata, "status": status}


def deployed(server: FakeApiServer, pods: int, units: int, **strategy: Any) -> Json:
    """Have a Deployment with running pods, and return its manifest with another image."""
    body = changed(changed(DEPLOYMENT, "spec.replicas", pods), LIMITS, {MEM: units})
    if strategy:
        body = changed(body, "spec.strategy", strategy)
    stored(server, body)
    for i in range(pods):
        there(server, f"w-h-{i}", "ReplicaSet/w-h", units=units, labels={"pod-template-hash": "h"})
    return changed(body, IMAGE, "registry.example.com/a:2")


def test_replicas_that_nobody_names_are_those_of_the_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    """As where a HorizontalPodAutoscaler has set them."""
    written = changed(DEPLOYMENT, "spec.replicas", GONE)
    stored(server, changed(written, "spec.replicas", 4), applied=written)
    placed, _ = simulated(server, kubeconfig, written)
    assert len(placed) == 4


def test_replicas_that_are_named_no_more_are_the_default(server: FakeApiServer, kubeconfig: str) -> None:
    written = changed(DEPLOYMENT, "spec.replicas", GONE)
    stored(server, changed(written, "spec.replicas", 4))
    placed, _ = simulated(server, kubeconfig, written)
    assert len(placed) == 1


def test_replicas_that_are_null_are_the_default(server: FakeApiServer, kubeconfig: str) -> None:
    written = changed(DEPLOYMENT, "spec.replicas", GONE)
    stored(server, changed(written, "spec.replicas", 4), applied=written)
    placed, _ = simulated(server, kubeconfig, changed(written, "spec.replicas", None))
    assert len(placed) == 1


def test_what_is_stored_and_what_is_written_are_judged_together(server: FakeApiServer, kubeconfig: str) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    stored(server, changed(STATEFUL_SET, "spec.updateStrategy", rolling), applied=STATEFUL_SET)
    written = changed(STATEFUL_SET, "spec.updateStrategy", {"type": "OnDelete"})
    _, said = simulated(server, kubeconfig, written, 2)
    assert "spec.updateStrategy.rollingUpdate: Invalid value" in said


def test_a_strategy_replaces_the_stored_one_as_a_whole(server: FakeApiServer, kubeconfig: str) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    stored(server, changed(DEPLOYMENT, "spec.strategy", rolling), applied=DEPLOYMENT)
    simulated(server, kubeconfig, changed(DEPLOYMENT, "spec.strategy", {"type": "Recreate"}))


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
def test_a_job_that_has_ended_makes_no_pods(server: FakeApiServer, kubeconfig: str, condition: str) -> None:
    stored(server, JOB, conditions=[{"type": condition, "status": "True"}])
    placed, said = simulated(server, kubeconfig, JOB)
    assert placed == []
    assert "Job default/w: none of its pods is still to be made in the cluster" in said


def test_a_job_that_goes_on_makes_the_pods_that_are_left(server: FakeApiServer, kubeconfig: str) -> None:
    body = changed(changed(JOB, "spec.parallelism", 4), "spec.completions", 5)
    stored(server, body, succeeded=3, conditions=[{"type": "Complete", "status": "False"}])
    placed, said = simulated(server, kubeconfig, body)
    assert len(placed) == 2
    assert "Job default/w: 2 of its pods are still to be made in the cluster" in said


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_does_not_start_again(server: FakeApiServer, kubeconfig: str, phase: str) -> None:
    there(server, "w", phase=phase)
    placed, said = simulated(server, kubeconfig, POD)
    assert placed == []
    assert f"Pod default/w: it has ended in the cluster ({phase})" in said


def test_a_rolling_update_needs_room_beside_the_old_pods(server: FakeApiServer, kubeconfig: str) -> None:
    """15 units, 2 x 6 in use: by default no old pod may leave before a new one is ready."""
    placed, said = simulated(server, kubeconfig, deployed(server, 2, 6), 3)
    assert len(placed) == 1, "maxSurge is 25 %: one new pod comes first, and waits"
    assert "Deployment default/w: its rolling update cannot begin: 2 old pods run on" in said
    assert "maxUnavailable 0, maxSurge 1" in said


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "Recreate"},
        {"rollingUpdate": {"maxUnavailable": 1}},
        {"rollingUpdate": {"maxUnavailable": "50%", "maxSurge": 0}},
        {"rollingUpdate": {"maxUnavailable": "1%", "maxSurge": "0%"}},
        {"rollingUpdate": {"maxUnavailable": "0" * 5_000 + "50%"}},
    ],
    ids=str,
)
def test_where_an_old_pod_may_leave_first_its_room_counts(
    server: FakeApiServer, kubeconfig: str, strategy: Json
) -> None:
    placed, said = simulated(server, kubeconfig, deployed(server, 2, 6, **strategy))
    assert len(placed) == 2
    assert "cannot begin" not in said


def test_a_rolling_update_with_room_begins(server: FakeApiServer, kubeconfig: str) -> None:
    """2 x 5 of 15 units: one more fits."""
    placed, said = simulated(server, kubeconfig, deployed(server, 2, 5))
    assert len(placed) == 2
    assert "cannot begin" not in said


def test_fewer_replicas_make_room_for_the_first(server: FakeApiServer, kubeconfig: str) -> None:
    """Of 2 x 6 pods one is wanted: the other leaves first."""
    placed, said = simulated(server, kubeconfig, changed(deployed(server, 2, 6), "spec.replicas", 1))
    assert len(placed) == 1
    assert "cannot begin" not in said


def limit_range(name: str, **limit: Any) -> Json:
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": metadata,
        "spec": {"limits": [{"type": "Container", **limit}]},
    }


def test_the_limit_ranges_of_the_cluster_bound_new_pods(server: FakeApiServer, kubeconfig: str) -> None:
    server.store[RANGES] = {"r": limit_range("r", max={MEM: "1"})}
    said = simulated(server, kubeconfig, POD, 2)[1]
    assert "maximum aliyun.com/gpu-mem usage per Container is 1, but it is 2" in said
    wider = {"apiVersion": "v1", "kind": "List", "items": [limit_range("r", max={MEM: "2"}), POD]}
    assert simulated(server, kubeconfig, wider)[0] == ["w"], "the same one is in the files, and counts"
    beside = {"apiVersion": "v1", "kind": "List", "items": [limit_range("s", max={MEM: "2"}), POD]}
    assert "is 1, but it is 2" in simulated(server, kubeconfig, beside, 2)[1], "another one counts beside it"


def test_rules_of_a_namespace_that_are_not_judged_are_said(server: FakeApiServer, kubeconfig: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    server.store["/api/v1/namespaces"] = {"default": {"metadata": {"name": "default", "labels": labels}}}
    server.store[QUOTAS] = {"q": {"metadata": {"name": "q", "namespace": "default"}}}
    placed, said = simulated(server, kubeconfig, POD)
    assert placed == ["w"]
    assert (
        "whether the quota of the namespace default allows its pods is not judged: it has the ResourceQuota q" in said
    )
    assert "the pods of the namespace default are not judged by its Pod Security level restricted" in said


@pytest.mark.parametrize("path", ["limitranges", "resourcequotas"])
def test_rules_that_may_not_be_read_are_said_to_be_unknown(server: FakeApiServer, kubeconfig: str, path: str) -> None:
    server.refused[f"/api/v1/namespaces/default/{path}"] = (403, "Forbidden")
    placed, said = simulated(server, kubeconfig, POD)
    assert (placed, f"not judged: GET /api/v1/namespaces/default/{path}" in said) == (["w"], True), said
    server.refused[f"/api/v1/namespaces/default/{path}"] = (500, "InternalError")
    assert "cannot read the cluster" in simulated(server, kubeconfig, POD, 1)[1]


SERVICES = "/api/v1/services"
NODE_PORT: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "w"},
    "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
}
CLAIM: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "w"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
LARGER = changed(CLAIM, "spec.resources.requests.storage", "2Gi")
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def test_a_node_port_of_another_service_is_refused(server: FakeApiServer, kubeconfig: str) -> None:
    other = {**NODE_PORT, "metadata": {"name": "other", "namespace": "else"}}
    server.store[SERVICES] = {"other": other}
    _, said = simulated(server, kubeconfig, NODE_PORT, 2)
    assert "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated by the cluster's" in said
    simulated(server, kubeconfig, changed(NODE_PORT, "spec.ports.0.nodePort", 30081))
    server.store[SERVICES] = {"w": {**NODE_PORT, "metadata": {"name": "w", "namespace": "default"}}}
    simulated(server, kubeconfig, NODE_PORT)


def test_services_that_may_not_be_listed_are_told(server: FakeApiServer, kubeconfig: str) -> None:
    server.refused[SERVICES] = (403, "Forbidden")
    _, said = simulated(server, kubeconfig, NODE_PORT)
    assert "whether other Services have the addresses and node ports is not judged" in said


@pytest.mark.parametrize(
    ("allowed", "code"), [(True, 0), (False, 2), (None, 2)], ids=["allowed", "not allowed", "no such class"]
)
def test_a_claim_grows_if_its_class_allows_it(
    server: FakeApiServer, kubeconfig: str, allowed: bool | None, code: int
) -> None:
    there = {**CLAIM, "metadata": {"name": "w", "namespace": "default"}, "status": {"phase": "Bound"}}
    server.store["/api/v1/namespaces/default/persistentvolumeclaims"] = {"w": there}
    server.store[CLASSES] = {"fast": {"allowVolumeExpansion": allowed}} if allowed is not None else {}
    _, said = simulated(server, kubeconfig, LARGER, code)
    assert ('its StorageClass "fast" has no allowVolumeExpansion' in said) == (code == 2)
    simulated(server, kubeconfig, CLAIM)


CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLAIMING_POD = changed(POD, "spec.volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])
MOUNTING = changed(CLAIMING_POD, "spec.containers.0.volumeMounts", [{"name": "v", "mountPath": "/x"}])


@pytest.mark.parametrize(("mode", "code"), [("Block", 2), ("Filesystem", 0), (GONE, 0)])
def test_a_claim_of_blocks_in_the_cluster_is_not_mounted(
    server: FakeApiServer, kubeconfig: str, mode: object, code: int
) -> None:
    claim = {**CLAIM, "metadata": {"name": "c", "namespace": "default"}}
    server.store[CLAIMS] = {"c": claim if mode is GONE else changed(claim, "spec.volumeMode", mode)}
    _, said = simulated(server, kubeconfig, MOUNTING, code)
    assert ('"v": its claim has the volumeMode Block, so no kubelet starts the pod' in said) == (code == 2)


CLAIMED_SET = changed(
    changed(STATEFUL_SET, "spec.volumeClaimTemplates", [{**CLAIM, "metadata": {"name": "v"}}]),
    "spec.template.spec.containers.0.volumeMounts",
    [{"name": "v", "mountPath": "/x"}],
)


@pytest.mark.parametrize(("name", "mode", "code"), [("v-w-0", "Block", 2), ("v-w-0", GONE, 0), ("v-w-9", "Block", 0)])
def test_a_set_that_finds_claims_of_blocks_does_not_mount_them(
    server: FakeApiServer, kubeconfig: str, name: str, mode: object, code: int
) -> None:
    """A StatefulSet's controller takes the claims of an earlier one of its name, whatever its templates say."""
    claim = {**CLAIM, "metadata": {"name": name, "namespace": "default"}}
    server.store[CLAIMS] = {name: claim if mode is GONE else changed(claim, "spec.volumeMode", mode)}
    _, said = simulated(server, kubeconfig, CLAIMED_SET, code)
    assert ('"v": its claim has the volumeMode Block, so no kubelet starts the pod' in said) == (code == 2)


def test_claims_that_may_not_be_listed_are_told(server: FakeApiServer, kubeconfig: str) -> None:
    server.refused[CLAIMS] = (403, "Forbidden")
    said = "whether the claims of the namespace default are of blocks or of files is not judged"
    assert said in simulated(server, kubeconfig, MOUNTING)[1]
    assert said not in simulated(server, kubeconfig, POD)[1]


def scaled_by(server: FakeApiServer, least: int, most: int) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most}
    body = {"metadata": {"name": "w", "namespace": "default"}, "spec": spec}
    server.store["/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"] = {"w": body}


def test_an_autoscaler_of_the_cluster_counts(server: FakeApiServer, kubeconfig: str) -> None:
    scaled_by(server, 4, 6)
    placed, said = simulated(server, kubeconfig, DEPLOYMENT)
    assert len(placed) == 4
    assert "HorizontalPodAutoscaler/w keeps it at 4 to 6 replicas" in said


@pytest.mark.parametrize(("scaled", "code"), [(False, 0), (True, 3)])
def test_a_workload_that_is_scaled_down_makes_room(
    server: FakeApiServer, kubeconfig: str, scaled: bool, code: int
) -> None:
    """3 x 4 of 15 units are in use; with one replica 7 more have room. What an autoscaler asks for comes back."""
    deployed(server, 3, 4)
    if scaled:
        scaled_by(server, 1, 6)
    fewer = changed(changed(DEPLOYMENT, "spec.replicas", 1), LIMITS, {MEM: 4})
    other = changed(changed(POD, "metadata.name", "p"), "spec.containers.0.resources.limits", {MEM: 7})
    both = {"apiVersion": "v1", "kind": "List", "items": [fewer, other]}
    placed, said = simulated(server, kubeconfig, both, code)
    assert placed == ["p"]
    assert ("2 more than are asked for leave" in said) != scaled


def test_a_set_that_is_scaled_down_loses_its_last_pods(server: FakeApiServer, kubeconfig: str) -> None:
    """w-0 with 2 units stays, and w-1 and w-2 with 5 each leave."""
    stored(server, changed(STATEFUL_SET, "spec.replicas", 3))
    for i in range(3):
        there(server, f"w-{i}", "StatefulSet/w", units=2)
    other = changed(changed(POD, "metadata.name", "p"), "spec.containers.0.resources.limits", {MEM: 12})
    both = {"apiVersion": "v1", "kind": "List", "items": [changed(STATEFUL_SET, "spec.replicas", 1), other]}
    placed, said = simulated(server, kubeconfig, both)
    assert (placed, "1 of its 1 pods run already; 2 more than are asked for leave" in said) == (["p"], True)


def printed(body: Json, uid: str = "w", **metadata: str) -> Json:
    """Return an object as the API server prints it."""
    return {**body, "metadata": {**body["metadata"], "namespace": "default", "uid": uid, **metadata}}


def test_a_printed_pod_that_runs_is_the_one_of_the_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    """Its file may have been edited, or be of another cluster."""
    there(server, "w")
    here = json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod", **server.store["/api/v1/pods"]["w"]}))
    here = changed(here, "spec.containers.0.image", "i")
    server.store["/api/v1/pods"]["w"] = here
    placed, said = simulated(server, kubeconfig, here)
    assert (placed, "counts as running" in said) == ([], True), said
    larger = changed(here, "spec.containers.0.resources.limits", {MEM: "9"})
    assert "spec.containers[0].resources.limits" in simulated(server, kubeconfig, larger, 2)[1]
    elsewhere = changed(here, "spec.nodeName", "m")
    assert "spec.nodeName: Forbidden: it is in the cluster" in simulated(server, kubeconfig, elsewhere, 2)[1]
    other = printed(here, "other")
    assert "metadata.uid: Invalid value: it is in the cluster with" in simulated(server, kubeconfig, other, 2)[1]
    server.store["/api/v1/pods"].clear()
    assert "spec.nodeName: it is not in the cluster" in simulated(server, kubeconfig, here, 2)[1]


@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
def test_a_printed_object_that_is_not_there_cannot_be_created(
    server: FakeApiServer, kubeconfig: str, body: Json
) -> None:
    """With a version an API server creates none; a dry run prints new ones without."""
    assert simulated(server, kubeconfig, printed(body))[0] != []
    _, said = simulated(server, kubeconfig, printed(body, resourceVersion="7"), 2)
    assert "metadata.resourceVersion: Forbidden: should not be set on objects to be created" in said
    if body is DEPLOYMENT:
        stored(server, body)
        simulated(server, kubeconfig, printed(body, resourceVersion="7"))


def test_a_gated_pod_is_decided_as_its_manifest_says(server: FakeApiServer, kubeconfig: str) -> None:
    """The gate that was written goes, a gate that a webhook added stays, and the nodeSelector becomes narrower."""
    gated = changed(POD, "spec.schedulingGates", [{"name": "example.com/mine"}])

    def live(*gates: str) -> None:
        there(server, "w", node="")
        pod = server.store["/api/v1/pods"]["w"]
        pod["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(gated)}
        pod["spec"]["schedulingGates"] = [{"name": each} for each in gates]

    live("example.com/mine")
    assert simulated(server, kubeconfig, POD)[0] == ["w"]
    narrower = changed(POD, "spec.nodeSelector", {"zone": "nowhere"})
    simulated(server, kubeconfig, narrower, 3)
    simulated(server, kubeconfig, gated, 3)
    live("example.com/mine", "example.com/added")
    simulated(server, kubeconfig, POD, 3)


def test_claims_to_volumes_of_the_cluster_are_told(server: FakeApiServer, kubeconfig: str) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    for body, path in ((POD, "spec.volumes"), (DEPLOYMENT, "spec.template.spec.volumes")):
        _, said = simulated(server, kubeconfig, changed(body, path, [volume]))
        assert "have the volumes of their claims" in said
        assert "have the volumes of their claims" not in simulated(server, kubeconfig, body)[1]


@pytest.mark.parametrize("items", [5, "x", {"a": 1}], ids=str)
def test_a_list_of_pods_that_is_none(
    server: FakeApiServer, kubeconfig: str, items: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = server.execute

    def lie(request: Request) -> tuple[int, Json]:
        return (200, {"items": items}) if "fieldSelector" in request.query else answer(request)

    monkeypatch.setattr(server, "execute", lie)
    assert "the answer is no list of an API server" in simulated(server, kubeconfig, POD, 2)[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/apis/apps/v1/namespaces/default/deployments/w", "the answer is no object of an API server"),
        ("/api/v1/namespaces/default/limitranges", "the answer is no list of an API server"),
    ],
)
def test_an_answer_that_is_not_utf8(server: FakeApiServer, kubeconfig: str, path: str, said: str) -> None:
    server.proxied[path] = 200, b'{"items": [], "a": "\xff"}'
    assert f"GET {path}: {said}" in simulated(server, kubeconfig, DEPLOYMENT, 2)[1]


NEWER: Json = {f"u{i}": 1 for i in range(30)}


@pytest.mark.parametrize("lie", [{"metadata": 5}, {"spec": 5}, {"spec": {"template": 5, "selector": 7}}], ids=str)
def test_an_object_with_many_newer_fields_that_is_none(server: FakeApiServer, kubeconfig: str, lie: Json) -> None:
    server.store["/apis/apps/v1/namespaces/default/deployments"] = {"w": {**NEWER, **DEPLOYMENT, **lie}}
    assert "the answer is no Deployment" in simulated(server, kubeconfig, DEPLOYMENT, 2)[1]


LIMIT: Json = {"type": "Container", "max": {"cpu": "100m"}, "default": None, "newField": 1}


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"metadata": None, "spec": {"limits": []}}, 0, ""),
        ({"metadata": {"name": "l"}, "spec": None}, 0, ""),
        ({"metadata": {"name": "l"}, "spec": {"limits": None}}, 0, ""),
        ({"metadata": {"name": "l"}, "spec": {"limits": [{**LIMIT, "max": {"cpu": None}}]}}, 0, ""),
        (
            {**NEWER, "metadata": {"name": "l"}, "spec": {"limits": 5}},
            0,
            "the LimitRange l of the namespace default is not applied",
        ),
        ({"metadata": {"name": "l"}, "spec": {"limits": [LIMIT]}}, 2, "maximum cpu usage per Container is 100m"),
        (
            {"metadata": {"name": "l"}, "spec": {"limits": "x"}},
            0,
            "the LimitRange l of the namespace default is not applied",
        ),
    ],
)
def test_odd_limit_ranges_of_a_cluster(
    server: FakeApiServer, kubeconfig: str, body: Json, code: int, said: str
) -> None:
    server.store[RANGES] = {"l": body}
    asking = changed(POD, "spec.containers.0.resources", {"limits": {MEM: 2, "cpu": 2}, "requests": {"cpu": 0}})
    _, told = simulated(server, kubeconfig, asking, code)
    assert said in told
