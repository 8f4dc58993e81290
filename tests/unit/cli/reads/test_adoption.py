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
from tests.fakes.corebuilders import allocation_text, share
from tests.fakes.livecluster import GIB, machine, put
from tests.unit.tools.simulator.manifests import (
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    MEM,
    POD,
    STATEFUL_SET,
    Json,
    changed,
    pod_template,
)

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
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
    put(server, machine())
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
        (changed(JOB, "spec.parallelism", 2), [("w-a", "Job/w", {})], 1, True),
        (CRON_JOB, [("w-29000000-a", "Job/w-29000000", {})], 0, True),
        (JOB_SET, [("w-a-0-x", "Job/w-a-0", {"jobset.sigs.k8s.io/jobset-name": "w"})], 1, True),
        (DEPLOYMENT, [("other", "ReplicaSet/other-h", {"pod-template-hash": "h"})], 2, False),
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
    placed, said = simulated(server, kubeconfig, larger)
    assert len(placed) == 2
    assert "0 of its 2 pods run already; 2 with other requests are replaced" in said


def test_a_pod_that_waits_is_decided_once_and_one_that_has_ended_is_no_copy(
    server: FakeApiServer, kubeconfig: str
) -> None:
    there(server, "w-h-a", "ReplicaSet/w-h", node="", labels={"pod-template-hash": "h"}, phase="Pending")
    there(server, "w-h-b", "ReplicaSet/w-h", labels={"pod-template-hash": "h"}, phase="Failed")
    placed, _ = simulated(server, kubeconfig, DEPLOYMENT)
    assert "w-h-a" in placed
    assert len(placed) == 2


PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_the_priority_classes_are_those_of_the_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    """They say in which order pods are decided, also of pods that name none."""
    large = changed(POD, "spec.containers.0.resources.limits", {MEM: 15})
    both = [large, changed(changed(large, "metadata.name", "first"), "spec.priorityClassName", "high")]
    body: Json = {"apiVersion": "v1", "kind": "List", "items": both}
    placed, said = simulated(server, kubeconfig, body, 3)
    assert (placed, 'the PriorityClass "high" is unknown' in said) == (["w", "first"], True)
    server.store[PRIORITIES] = {"high": {"metadata": {"name": "high"}, "value": 7}}
    placed, said = simulated(server, kubeconfig, body, 3)
    assert (placed, "PriorityClass" in said) == (["first", "w"], False)
    server.store[PRIORITIES]["high"]["globalDefault"] = True
    assert simulated(server, kubeconfig, body, 3)[0] == ["w", "first"]


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


def test_another_mode_places_pods_that_wait(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, machine())
    there(server, "runs")
    there(server, "waits", node="")
    options = ["--from-cluster", "--kubeconfig", kubeconfig, "--mode", "cgpu", "-o", "json"]
    decided = json.loads(run.invoke(app, ["simulate", *options]).stdout)["decisions"]
    assert [(each["pod"], each["node"]) for each in decided] == [("runs", "n"), ("waits", "n")]
