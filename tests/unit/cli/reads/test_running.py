"""``simulate --from-cluster``: what runs already is not placed again."""

import json
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import allocation_text, gpu_node, share
from tests.manifests import CRON_JOB, DEPLOYMENT, GONE, JOB, MEM, POD, STATEFUL_SET, Json, changed, pod_template

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
GIB = 1024
VERSIONS = {"Job": "batch/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}
JOB_SET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "w"},
    "spec": {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": {"template": pod_template()}}}]},
}


def there(
    server: FakeApiServer,
    name: str,
    owner: str = "",
    *,
    units: int = 2,
    node: str = "n",
    labels: dict[str, str] | None = None,
    version: str = "",
    **status: Any,
) -> None:
    """Store a pod of the cluster; ``owner`` is KIND/NAME, of the ``version`` that Kubernetes has of the kind."""
    kind, _, owned_by = owner.partition("/")
    annotations = {ALLOCATION_ANNOTATION: allocation_text(share("GPU-n-0", units * GIB))} if node else {}
    meta: Json = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": {"app": "x"} | (labels or {}),
        "annotations": annotations,
    }
    if owner:
        reference = {"apiVersion": version or VERSIONS[kind], "kind": kind, "name": owned_by, "uid": owned_by}
        meta["ownerReferences"] = [{**reference, "controller": True}]
    limits = {MEM: str(units)}
    container = {"name": "c", "image": "i", "resources": {"limits": limits, "requests": limits}}
    body = {"metadata": meta, "spec": {"nodeName": node, "containers": [container]}, "status": status}
    server.store["/api/v1/pods"][name] = msgspec.to_builtins(msgspec.convert(body, Pod))


def simulated(server: FakeApiServer, kubeconfig: str, body: Json, code: int = 0) -> tuple[list[str], str]:
    """Return the pods that are placed, and what is said on stderr."""
    machine = gpu_node("n", mode="share", sizes=[15 * GIB], unit_mib=GIB, allocatable={MEM: "15", "pods": "110"})
    server.store["/api/v1/nodes"]["n"] = msgspec.to_builtins(machine)
    options = ["--from-cluster", "--kubeconfig", kubeconfig, "-f", "-", "-o", "json"]
    result = run.invoke(app, ["simulate", *options], input=json.dumps(body))
    assert result.exit_code == code, result.output
    decisions = json.loads(result.stdout)["decisions"] if result.stdout else []
    return [decision["pod"] for decision in decisions], result.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("body", "live", "left", "known"),
    [
        (POD, [("w", "", {})], 0, True),
        (
            changed(DEPLOYMENT, "spec.replicas", 3),
            [(f"w-h-{i}", "ReplicaSet/w-h", {"pod-template-hash": "h"}) for i in "ab"],
            1,
            True,
        ),
        (
            changed(STATEFUL_SET, "spec.replicas", 3),
            [("w-1", "StatefulSet/w", {}), ("w-2", "StatefulSet/w", {})],
            1,
            True,
        ),
        (changed(JOB, "spec.parallelism", 2), [("w-a", "Job/w", {})], 1, True),
        (CRON_JOB, [("w-29000000-a", "Job/w-29000000", {})], 0, True),
        (JOB_SET, [("w-a-0-x", "Job/w-a-0", {"jobset.sigs.k8s.io/jobset-name": "w"})], 1, True),
        (DEPLOYMENT, [("other", "ReplicaSet/other-h", {"pod-template-hash": "h"})], 2, False),
        (DEPLOYMENT, [("w-h-a", "ReplicaSet/w-other", {"pod-template-hash": "h"})], 2, False),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)
def test_pods_are_known_by_their_owner(
    server: FakeApiServer,
    kubeconfig: str,
    body: Json,
    live: list[tuple[str, str, dict[str, str]]],
    left: int,
    known: bool,
) -> None:
    for name, owner, labels in live:
        there(server, name, owner, labels=labels)
    server.kinds["jobset.x-k8s.io/v1alpha2"] = ["JobSet"]
    placed, said = simulated(server, kubeconfig, body)
    assert len(placed) == left
    assert ("run already" in said) == known


@pytest.mark.parametrize(
    ("body", "owner", "version", "labels"),
    [
        (JOB, "Job/w", "batch.volcano.sh/v1alpha1", {}),
        (STATEFUL_SET, "StatefulSet/w", "apps.kruise.io/v1beta1", {}),
        (DEPLOYMENT, "ReplicaSet/w-h", "example.com/v1", {"pod-template-hash": "h"}),
        (CRON_JOB, "Job/w-29000000", "batch.volcano.sh/v1alpha1", {}),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) and "kind" in value else "",
)
def test_objects_of_another_group_are_others(
    server: FakeApiServer, kubeconfig: str, body: Json, owner: str, version: str, labels: dict[str, str]
) -> None:
    there(server, "other-0", owner, labels=labels, version=version)
    wanted = {"Deployment": 2}.get(body["kind"], 1)
    placed, said = simulated(server, kubeconfig, body)
    assert (len(placed), "run already" in said) == (wanted, False), said


def test_the_numbers_of_a_set_that_are_missing_are_placed(server: FakeApiServer, kubeconfig: str) -> None:
    there(server, "w-1", "StatefulSet/w")
    placed, said = simulated(server, kubeconfig, changed(STATEFUL_SET, "spec.replicas", 3))
    assert placed == ["w-0", "w-2"]
    assert "StatefulSet default/w: 1 of its 3 pods run already" in said


def test_what_asks_for_something_else_is_replaced(server: FakeApiServer, kubeconfig: str) -> None:
    """As its controller replaces it; the room that it had is free."""
    for i in "ab":
        there(server, f"w-h-{i}", "ReplicaSet/w-h", units=6, labels={"pod-template-hash": "h"})
    larger = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources.limits", {MEM: 7})
    placed, said = simulated(server, kubeconfig, changed(larger, "spec.strategy", {"type": "Recreate"}))
    assert len(placed) == 2
    assert "0 of its 2 pods run already; 2 that ask for something else are replaced" in said


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("topologySpreadConstraints", [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}], 3),
        ("volumes", [{"name": "v", "gcePersistentDisk": {"pdName": "d"}}], 0),
    ],
)
def test_another_rule_of_the_template_replaces_pods_too(
    server: FakeApiServer, kubeconfig: str, field: str, value: Json, code: int
) -> None:
    there(server, "w-h-a", "ReplicaSet/w-h", labels={"pod-template-hash": "h"})
    body = changed(changed(DEPLOYMENT, "spec.replicas", 1), f"spec.template.spec.{field}", value)
    _, said = simulated(server, kubeconfig, body, code)
    assert "0 of its 1 pods run already; 1 that ask for something else are replaced" in said


@pytest.mark.parametrize(("body", "owner"), [(POD, ""), (JOB, "Job/w")], ids=["Pod", "Job"])
def test_what_cannot_be_changed_is_refused(server: FakeApiServer, kubeconfig: str, body: Json, owner: str) -> None:
    there(server, "w", owner, units=6)
    placed, said = simulated(server, kubeconfig, body, code=2)
    said_of = "Forbidden: it is in the cluster and asks for other GPUs"
    if body["kind"] == "Pod":
        said_of = 'spec.containers[0].resources.limits["aliyun.com/gpu-mem"]: Forbidden: it is in the cluster, and this'
    assert (placed, said_of in said) == ([], True)


def test_a_job_that_is_not_known_is_judged_by_its_pods(server: FakeApiServer, kubeconfig: str) -> None:
    there(server, "w", "Job/w")
    _, said = simulated(server, kubeconfig, changed(JOB, "spec.template.spec.nodeSelector", {"zone": "a"}), code=2)
    assert "Job default/w: spec.template: Forbidden: it is in the cluster and asks for something else" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spec.tolerations", [{"key": "k", "operator": "Exists"}]),
        ("spec.schedulingGates", [{"name": "example.com/g"}]),
        ("metadata.labels", {"app": "x", "more": "m"}),
    ],
)
@pytest.mark.parametrize("known", ["template", "changed", ""])
def test_pods_of_another_template_are_replaced(
    server: FakeApiServer, kubeconfig: str, field: str, value: Json, known: str
) -> None:
    """Where the object may be read, its template says it; a gate that a controller took away is no change then."""
    one = changed(DEPLOYMENT, "spec.replicas", 1)
    there(server, "w-h-a", "ReplicaSet/w-h", labels={"pod-template-hash": "h"})
    body = changed(one, f"spec.template.{field}", value)
    if known:
        place = "/apis/apps/v1/namespaces/default/deployments"
        server.store[place] = {"w": body if known == "template" else one}
    placed, said = simulated(server, kubeconfig, body, 3 if known != "template" and "Gates" in field else 0)
    if known == "template" and "Gates" in field:
        assert (placed, "1 of its 1 pods run already" in said) == ([], True)
    elif known != "template":
        assert (placed != [], "0 of its 1 pods run already; 1 " in said) == (True, True)


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (POD, "spec.containers.0.env", [{"name": "A", "value": "b"}]),
        (JOB, "spec.template.spec.hostname", "h"),
        (STATEFUL_SET, "spec.serviceName", "other"),
    ],
    ids=["Pod", "Job", "StatefulSet"],
)
def test_the_field_that_cannot_be_changed_is_named(
    server: FakeApiServer, kubeconfig: str, body: Json, path: str, value: Json
) -> None:
    kept = changed(body, "metadata.namespace", "default")
    prefix = "/api/v1/pods"
    if body["kind"] != "Pod":
        prefix = f"/apis/{body['apiVersion']}/namespaces/default/{body['kind'].lower()}s"
    server.store.setdefault(prefix, {})["w"] = kept | ({"status": {}} if body["kind"] == "Pod" else {})
    assert "cannot be changed" not in simulated(server, kubeconfig, body)[1]
    field = path.replace(".0.", "[0].")
    assert f"{body['kind']}/w: {field}: Forbidden" in simulated(server, kubeconfig, changed(body, path, value), 2)[1]


def test_an_object_that_may_not_be_read_makes_a_note(server: FakeApiServer, kubeconfig: str) -> None:
    server.refused["/apis/apps/v1/namespaces/default/deployments/w"] = (403, "Forbidden")
    _, said = simulated(server, kubeconfig, DEPLOYMENT)
    assert "Deployment/w: whether its API server refuses a change of it is not judged: GET /apis/apps/v1" in said


def test_a_pod_that_waits_is_decided_once_and_one_that_has_ended_is_no_copy(
    server: FakeApiServer, kubeconfig: str
) -> None:
    there(server, "w-h-a", "ReplicaSet/w-h", node="", labels={"pod-template-hash": "h"}, phase="Pending")
    there(server, "w-h-b", "ReplicaSet/w-h", labels={"pod-template-hash": "h"}, phase="Failed")
    placed, _ = simulated(server, kubeconfig, DEPLOYMENT)
    assert "w-h-a" in placed
    assert len(placed) == 2


def test_pods_printed_from_the_cluster_count_once(server: FakeApiServer, kubeconfig: str) -> None:
    there(server, "w", units=10)
    stored = server.store["/api/v1/pods"]["w"]
    other = changed(POD, "metadata.name", "other")
    items = [
        {"apiVersion": "v1", "kind": "Pod", **stored},
        changed(other, "spec.containers.0.resources.limits", {MEM: 5}),
    ]
    placed, _ = simulated(server, kubeconfig, {"apiVersion": "v1", "kind": "List", "items": items})
    assert placed == ["other"]


def test_ports_of_pods_that_run_are_taken(server: FakeApiServer, kubeconfig: str) -> None:
    there(server, "other")
    opened = [{"containerPort": 80, "hostPort": 8080}]
    (container,) = server.store["/api/v1/pods"]["other"]["spec"]["containers"]
    container["ports"] = opened
    body = changed(POD, "spec.containers.0.ports", opened)
    assert simulated(server, kubeconfig, body, code=3)[0] == ["w"]
    assert simulated(server, kubeconfig, changed(body, "spec.containers.0.ports.0.hostPort", 8081))[0] == ["w"]


@pytest.mark.parametrize(
    "answer",
    [
        {"spec": 5},
        {"metadata": []},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": 5}}},
        {"spec": {"template": {"spec": {"containers": {"name": "c"}}}}},
    ],
    ids=str,
)
def test_an_answer_that_is_no_such_object_is_said(server: FakeApiServer, kubeconfig: str, answer: Json) -> None:
    server.store["/apis/apps/v1/namespaces/default/deployments"] = {"w": answer}
    _, said = simulated(server, kubeconfig, DEPLOYMENT, 2)
    assert "cannot read the cluster: GET /apis/apps/v1/namespaces/default/deployments/w: the answer is no" in said


def test_a_field_that_a_stored_deployment_does_not_have_is_not_read(server: FakeApiServer, kubeconfig: str) -> None:
    stored = changed(DEPLOYMENT, "spec.updateStrategy", "OnDelete")
    server.store["/apis/apps/v1/namespaces/default/deployments"] = {"w": stored}
    assert len(simulated(server, kubeconfig, DEPLOYMENT)[0]) == DEPLOYMENT["spec"]["replicas"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [({"spec": None}, 0), ({"metadata": {"annotations": None}}, 0), ({"spec": {"selector": None, "x": [None]}}, 2)],
    ids=str,
)
def test_nothing_in_an_answer_is_nothing(server: FakeApiServer, kubeconfig: str, answer: Json, code: int) -> None:
    server.store["/apis/apps/v1/namespaces/default/deployments"] = {"w": answer}
    _, said = simulated(server, kubeconfig, DEPLOYMENT, code)
    assert ("spec.selector: Forbidden" in said) is bool(code)


def test_a_name_is_no_path(server: FakeApiServer, kubeconfig: str) -> None:
    _, said = simulated(server, kubeconfig, changed(DEPLOYMENT, "metadata.name", "../../a?b"), 2)
    assert "metadata.name: Invalid value" in said
    asked = [request.path for request in server.requests if "/deployments" in request.path]
    assert asked == ["/apis/apps/v1/namespaces/default/deployments/..%2F..%2Fa%3Fb"]


PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CLASS: Json = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "new"}, "value": 9}


def test_the_priority_classes_are_those_of_the_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    """As the API server's admission decides by them: which exist, and which is for pods that name none."""
    named = changed(changed(POD, "spec.priorityClassName", "high"), "spec.priority", 7)
    assert "no file has the PriorityClass" in simulated(server, kubeconfig, changed(named, "spec.priority", GONE))[1]
    server.store[PRIORITIES] = {"high": {"metadata": {"name": "high"}, "value": 7, "globalDefault": True}}
    placed, said = simulated(server, kubeconfig, named)
    assert (placed, "PriorityClass" in said) == (["w"], False)
    other = simulated(server, kubeconfig, changed(named, "spec.priority", 8), 2)[1]
    assert 'spec.priority: Forbidden: it is 8, and the PriorityClass "high" has 7' in other
    lower = simulated(server, kubeconfig, changed(POD, "spec.priority", 8), 2)[1]
    assert 'spec.priority: Forbidden: it is 8, and the PriorityClass "high" has 7' in lower
    absent = simulated(server, kubeconfig, changed(POD, "spec.priorityClassName", "none"), 2)[1]
    assert 'spec.priorityClassName: Forbidden: no PriorityClass with name "none" was found' in absent
    second = simulated(server, kubeconfig, changed(CLASS, "globalDefault", True), 2)[1]
    assert "PriorityClass/new: globalDefault: Forbidden: high is already marked as default" in second
    system = changed(POD, "spec.priorityClassName", "system-node-critical")
    assert simulated(server, kubeconfig, system)[0] == ["w"]


def test_priority_classes_that_may_not_be_listed_are_said_to_be_unknown(server: FakeApiServer, kubeconfig: str) -> None:
    server.refused[PRIORITIES] = (403, "Forbidden")
    placed, said = simulated(server, kubeconfig, changed(POD, "spec.priorityClassName", "high"))
    assert (placed, "the cluster's PriorityClasses are not known (GET " in said) == (["w"], True), said


RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
SANDBOXED = changed(POD, "spec.runtimeClassName", "kata")
KATA: Json = {
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "160Mi"}},
    "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]},
}


def test_the_runtime_classes_are_those_of_the_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    """The API server's admission refuses pods of a class that is not there, and writes what the class gives."""
    server.store[RUNTIMES] = {"other": {"metadata": {"name": "other"}, "handler": "other"}}
    absent = simulated(server, kubeconfig, SANDBOXED, 2)[1]
    assert 'spec.runtimeClassName: Forbidden: no RuntimeClass with name "kata" was found' in absent
    server.store[RUNTIMES] = {"kata": KATA}
    assert simulated(server, kubeconfig, SANDBOXED, 3)[0] == ["w"], "no node has the label that the class asks for"
    conflict = simulated(server, kubeconfig, changed(SANDBOXED, "spec.nodeSelector", {"sandbox": "no"}), 2)[1]
    assert 'and the RuntimeClass "kata" has "yes"' in conflict
    overhead = simulated(server, kubeconfig, changed(SANDBOXED, "spec.overhead", {"cpu": "1"}), 2)[1]
    assert 'it is not the overhead of the RuntimeClass "kata"' in overhead
    server.store[RUNTIMES] = {"kata": {"metadata": {"name": "kata"}, "handler": "kata"}}
    placed, said = simulated(server, kubeconfig, SANDBOXED)
    assert (placed, "RuntimeClass" in said) == (["w"], False)


def test_a_runtime_class_among_the_files_goes_before_that_of_the_cluster(
    server: FakeApiServer, kubeconfig: str
) -> None:
    server.store[RUNTIMES] = {"kata": KATA}
    server.kinds["node.k8s.io/v1"] = ["RuntimeClass"]
    written = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    both = {"apiVersion": "v1", "kind": "List", "items": [written, SANDBOXED]}
    assert simulated(server, kubeconfig, both)[0] == ["w"]


@pytest.mark.parametrize("status", [403, 404])
def test_runtime_classes_that_may_not_be_listed_are_said_to_be_unknown(
    server: FakeApiServer, kubeconfig: str, status: int
) -> None:
    server.refused[RUNTIMES] = (status, "Forbidden" if status == 403 else "NotFound")
    placed, said = simulated(server, kubeconfig, SANDBOXED)
    assert (placed, "the cluster's RuntimeClasses are not known (GET " in said) == (["w"], True), said
    assert "RuntimeClass" not in simulated(server, kubeconfig, POD)[1], "nobody misses what nothing names"


@pytest.mark.requirement("B4")
def test_a_runtime_class_that_cannot_be_read_is_not_taken_for_absent(server: FakeApiServer, kubeconfig: str) -> None:
    server.store[RUNTIMES] = {"kata": {"metadata": {"name": "kata"}, "overhead": {"podFixed": [1]}}}
    placed, said = simulated(server, kubeconfig, SANDBOXED)
    assert (placed, "RuntimeClasses are not known (kata cannot be read: " in said) == (["w"], True), said


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    "path",
    [
        PRIORITIES,
        "/api/v1/namespaces",
        "/api/v1/namespaces/gputile/configmaps",
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    ],
)
def test_a_failing_api_server_is_no_lack_of_a_right(server: FakeApiServer, kubeconfig: str, path: str) -> None:
    """A check that needs the answer would be left out now and then, and what it refuses would pass."""
    server.refused[path] = (500, "InternalError")
    placed, said = simulated(server, kubeconfig, POD, 1)
    assert (placed, f"cannot read the cluster: GET {path}" in said) == ([], True), said


NAMESPACES = "/api/v1/namespaces"
LEARNS: Json = {"containers": [{**POD["spec"]["containers"][0], "name": "pytorch"}]}
TORCH: Json = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "w"},
    "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": LEARNS}}}},
}


@pytest.mark.requirement("B4")
def test_a_namespace_has_to_be_in_the_cluster_or_in_the_files(server: FakeApiServer, kubeconfig: str) -> None:
    """In the words of the API server."""
    server.store[NAMESPACES] = {
        "default": {"metadata": {"name": "default"}},
        "dying": {"metadata": {"name": "dying", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    }
    assert simulated(server, kubeconfig, POD)[0] == ["w"]
    absent = changed(POD, "metadata.namespace", "defualt")
    said = simulated(server, kubeconfig, absent, 2)[1]
    assert 'metadata.namespace: namespaces "defualt" not found; did you mean default?' in said
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "defualt"}}
    both = {"apiVersion": "v1", "kind": "List", "items": [absent, made]}
    assert simulated(server, kubeconfig, both)[0] == ["w"]
    said = simulated(server, kubeconfig, changed(POD, "metadata.namespace", "dying"), 2)[1]
    assert "unable to create new content in namespace dying because it is being terminated" in said
    server.refused[NAMESPACES] = (403, "Forbidden")
    placed, said = simulated(server, kubeconfig, absent)
    assert (placed, "the cluster's namespaces are not known (GET " in said) == (["w"], True), said


@pytest.mark.requirement("B4")
def test_a_kind_has_to_be_served_by_the_cluster_or_defined_by_the_files(server: FakeApiServer, kubeconfig: str) -> None:
    said = simulated(server, kubeconfig, TORCH, 2)[1]
    assert 'no matches for kind "PyTorchJob" in version "kubeflow.org/v1": the cluster does not serve it' in said
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"plural": "pytorchjobs", "kind": "PyTorchJob"},
            "versions": [{"name": "v1", "served": True, "storage": True}],
        },
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [definition, TORCH]}
    assert simulated(server, kubeconfig, both)[0] == ["w-master-0"]
    server.kinds["kubeflow.org/v1"] = ["PyTorchJob"]
    assert simulated(server, kubeconfig, TORCH)[0] == ["w-master-0"]
    server.refused["/apis/kubeflow.org/v1"] = (500, "InternalError")
    assert "cannot read the cluster" in simulated(server, kubeconfig, TORCH, 1)[1]
    server.refused["/apis/kubeflow.org/v1"] = (403, "Forbidden")
    assert simulated(server, kubeconfig, TORCH)[0] == ["w-master-0"]
    server.refused["/api/v1"] = (404, "NotFound")
    assert simulated(server, kubeconfig, POD)[0] == ["w"]
