"""The control plane that the other tests rely on does what Kubernetes does, and what the ledger builds on."""

import shutil
from collections.abc import Mapping
from typing import Any

import httpx2 as httpx
import pytest

from tests.localcluster.__main__ import program_path
from tests.localcluster.client import Api, ApiError
from tests.localcluster.controlplane import ControlPlane, KubectlFailed
from tests.localcluster.idle_extender import extender_url, start_idle_extender
from tests.localcluster.nodes import NodeSpec

pytestmark = pytest.mark.usefixtures("no_nodes")


def create_pod(plane: ControlPlane, namespace: str, name: str, **metadata: Mapping[str, str]) -> dict[str, Any]:
    pod = {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "main", "image": "example"}]}}
    created: dict[str, Any] = plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    return created


def get_pod(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return pod


def wait_bound(plane: ControlPlane, namespace: str, name: str) -> str:
    def node() -> str:
        return str(get_pod(plane, namespace, name)["spec"].get("nodeName", ""))

    plane.wait(lambda: bool(node()), f"{namespace}/{name} to be bound")
    return node()


def bind(plane: ControlPlane, pod: Mapping[str, Any], node: str, uid: str, annotations: Mapping[str, str]) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)


def test_a_plain_pod_is_scheduled_to_a_simulated_node(control_plane: ControlPlane, namespace: str) -> None:
    node = control_plane.nodes.create_node("only", labels={"kind": "simulated"}, capacity={"example.com/thing": "60"})
    assert node["status"]["allocatable"]["example.com/thing"] == "60"
    assert "taints" not in node["spec"]
    with control_plane.start_scheduler():
        create_pod(control_plane, namespace, "plain")
        assert wait_bound(control_plane, namespace, "plain") == "only"
    control_plane.nodes.set_pod_phase(namespace, "plain", "Running")
    pod = get_pod(control_plane, namespace, "plain")
    conditions = {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}
    assert pod["status"]["phase"] == "Running"
    assert conditions == {"PodScheduled": "True", "Ready": "True"}


def wait_cached(plane: ControlPlane, namespace: str, name: str) -> None:
    """Wait until the API server's cache has the Binding.

    A deletion begins with the pod as the cache has it, and one without a node needs no time to end: the API server
    keeps to that when it then finds the node (``CheckGracefulDelete`` in pkg/registry/core/pod, which sets the period
    in the options, and ``GuaranteedUpdate`` of the cacher, which tries the cached object first).
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    plane.wait(lambda: "nodeName" in plane.api.get(path, resourceVersion="0")["spec"], f"{name} to be cached as bound")


def test_a_pod_on_a_simulated_node_goes_when_it_is_deleted_by_force(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.nodes.create_node("holder")
    pod = create_pod(control_plane, namespace, "short")
    bind(control_plane, pod, "holder", pod["metadata"]["uid"], {})
    wait_cached(control_plane, namespace, "short")
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/short")
    assert "deletionTimestamp" in get_pod(control_plane, namespace, "short")["metadata"], "it waits for its kubelet"
    control_plane.nodes.delete_pod_now(namespace, "short")
    with pytest.raises(ApiError) as gone:
        get_pod(control_plane, namespace, "short")
    assert gone.value.status == httpx.codes.NOT_FOUND


def test_a_binding_sets_the_node_and_merges_annotations_in_one_write(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.nodes.create_node("chosen")
    pod = create_pod(control_plane, namespace, "booked", annotations={"kept": "yes", "changed": "before"})
    bind(control_plane, pod, "chosen", pod["metadata"]["uid"], {"changed": "after", "added": "yes"})
    bound = get_pod(control_plane, namespace, "booked")
    assert bound["spec"]["nodeName"] == "chosen"
    assert bound["metadata"]["annotations"] == {"kept": "yes", "changed": "after", "added": "yes"}


def test_a_second_binding_is_refused_and_changes_nothing(control_plane: ControlPlane, namespace: str) -> None:
    pod = create_pod(control_plane, namespace, "booked")
    bind(control_plane, pod, "first", pod["metadata"]["uid"], {"by": "first"})
    before = get_pod(control_plane, namespace, "booked")
    with pytest.raises(ApiError) as refused:
        bind(control_plane, pod, "second", pod["metadata"]["uid"], {"by": "second"})
    assert refused.value.status == httpx.codes.CONFLICT
    assert get_pod(control_plane, namespace, "booked") == before


def test_a_binding_for_another_uid_is_refused_and_changes_nothing(control_plane: ControlPlane, namespace: str) -> None:
    before = create_pod(control_plane, namespace, "booked")
    with pytest.raises(ApiError) as refused:
        bind(control_plane, before, "chosen", "00000000-0000-0000-0000-000000000000", {"by": "stranger"})
    assert refused.value.status == httpx.codes.CONFLICT
    assert get_pod(control_plane, namespace, "booked") == before


@pytest.mark.parametrize("node_cache_capable", [True, False])
def test_a_scheduler_with_the_idle_extender_binds_through_it(
    control_plane: ControlPlane, namespace: str, node_cache_capable: bool
) -> None:
    control_plane.nodes.create_nodes(NodeSpec(name=f"many-{number}") for number in range(20))
    with (
        start_idle_extender(control_plane, bind=True) as extender,
        control_plane.start_scheduler(extender_url(extender), bind=True, node_cache_capable=node_cache_capable),
    ):
        create_pod(control_plane, namespace, "asked")
        assert wait_bound(control_plane, namespace, "asked").startswith("many-")


def test_of_two_schedulers_the_second_takes_over_when_the_first_is_killed(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.nodes.create_node("only")
    first = control_plane.start_scheduler(name="scheduler-a", lease_seconds=9)
    with first, control_plane.start_scheduler(name="scheduler-b", lease_seconds=9):
        create_pod(control_plane, namespace, "before")
        wait_bound(control_plane, namespace, "before")
        first.kill()
        create_pod(control_plane, namespace, "after")
        assert wait_bound(control_plane, namespace, "after") == "only"
        lease = control_plane.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler")
        assert lease["spec"]["leaseDurationSeconds"] == 9, "not the 15 of kube-scheduler's own"
        assert lease["spec"]["leaseTransitions"] > 0


def test_a_user_may_do_only_what_is_granted(control_plane: ControlPlane) -> None:
    with Api(control_plane.url, str(control_plane.ca), control_plane.identity("somebody", ["visitors"])) as api:
        assert api.get("/version")["major"] == "1"
        with pytest.raises(ApiError, match="somebody") as refused:
            api.get("/api/v1/nodes")
    assert refused.value.status == httpx.codes.FORBIDDEN


def test_the_path_that_make_cluster_prints_has_kubectl_and_its_plugin(control_plane: ControlPlane) -> None:
    for program in ("kubectl", "kubectl-inspect-cgpu", "gputile"):
        assert shutil.which(program, path=program_path(control_plane)), program


def test_kubectl_speaks_to_it(control_plane: ControlPlane) -> None:
    settings = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}'
    control_plane.kubectl("apply", "-f", "-", input=settings)
    assert control_plane.kubectl("get", "configmap", "settings", "-o", "jsonpath={.data.a}") == "b"
    with pytest.raises(KubectlFailed, match="not found"):
        control_plane.kubectl("get", "configmap", "nosuch")
