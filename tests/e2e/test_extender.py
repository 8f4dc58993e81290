"""The extender on a real kube-scheduler: GPUs, reasons, models."""

import json
from collections.abc import Iterator

import msgspec
import pytest
import yaml

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import ACK_ALLOCATION, GPU_CORE, GPU_MEMORY, GPUSHARE_INDEX, TOPOLOGY_GPU
from gputile.controlplane.extender.binder import PodApi
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.bind import PodBinding
from gputile.core.scheduling.placement_engine import Decision
from gputile.kube.client import Connection
from gputile.kube.config import load_access
from gputile.kube.errors import Conflict
from tests.e2e.extender import (
    assert_nothing_over_allocated,
    bound,
    events_of,
    gpus_of,
    pod_body,
    pods_in,
    scheduled,
    why_pending,
)
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.documents import document_yaml
from tests.localcluster.gputile import SERVICE_ACCOUNT, SERVICE_ACCOUNT_GROUPS

pytestmark = pytest.mark.requirement("U1", "U2", "U3", "U4", "U7", "M9", "T2", "T3", "B1", "B9")

CLUSTER = """
gpuMemoryUnit: 128MiB
nodes:
- {name: t4, address: 192.0.2.109, mode: share, gpus: {count: 4, model: Tesla T4, memory: 15GiB}, taints: []}
- {name: spread, mode: cgpu, placement: spread, gpus: {count: 4, model: NVIDIA A10, memory: 15GiB}, taints: []}
- {name: core, mode: core_mem, gpus: {count: 1, model: NVIDIA A10, memory: 15GiB}, taints: []}
- {name: nvlink, mode: topology, gpus: {count: 8, model: NVIDIA A100, memory: 80GiB, bandwidth: nvlink}, taints: []}
"""


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The nodes of CLUSTER, an extender and a scheduler that asks it."""
    directory = tmp_path_factory.mktemp("cluster")
    with scheduled(control_plane, directory, CLUSTER, unit="128MiB", pods_without_gpus=True) as cluster:
        yield cluster


def create(plane: ControlPlane, namespace: str, *bodies: dict[str, object]) -> None:
    for body in bodies:
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def wait_bound(plane: ControlPlane, namespace: str, count: int) -> None:
    plane.wait(lambda: len(bound(pods_in(plane, namespace))) == count, f"{count} pods bound in {namespace}")


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


@pytest.mark.requirement("U2", "U3", "M9")
def test_the_statefulset_of_the_documents_fills_one_gpu_before_the_next(cluster: ControlPlane, namespace: str) -> None:
    """7 pods of 16 x 128 MiB fill a GPU of 120 units; the eighth goes to the next. Run unmodified."""
    manifest = yaml.safe_load(document_yaml("001")[0])
    manifest["spec"]["replicas"] = 4
    manifest["spec"]["template"]["spec"]["nodeSelector"] = on("t4")
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(manifest))
    wait_bound(cluster, namespace, 4)
    assert [gpus_of(pod) for pod in pods_in(cluster, namespace)] == [[0]] * 4
    cluster.kubectl("-n", namespace, "scale", "statefulset/binpack", "--replicas=9")
    wait_bound(cluster, namespace, 9)
    gpus = sorted(gpu for pod in pods_in(cluster, namespace) for gpu in gpus_of(pod))
    assert gpus == [0] * 7 + [1] * 2
    annotations = pods_in(cluster, namespace)[0]["metadata"]["annotations"]
    assert json.loads(annotations[ACK_ALLOCATION]) == {"0": {"0": 16}}
    assert annotations[GPUSHARE_INDEX] == "0"
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "16"
    assert annotations["ALIYUN_COM_GPU_MEM_DEV"] == "120"
    assert_nothing_over_allocated(cluster)


def test_pods_of_one_workload_stay_together(cluster: ControlPlane, namespace: str) -> None:
    """The cluster's binpack holds between nodes too, against the scheduler's own wish to spread."""
    create(cluster, namespace, *(pod_body(f"p{i}", {GPU_MEMORY: 8}, labels={"app": "one"}) for i in range(6)))
    wait_bound(cluster, namespace, 6)
    assert len(set(bound(pods_in(cluster, namespace)).values())) == 1


@pytest.mark.requirement("B3")
def test_pods_without_gpus_go_where_no_gpu_is_left_to_serve(cluster: ControlPlane, namespace: str) -> None:
    """By itself kube-scheduler spreads them, and takes the CPU of nodes whose GPUs then lie idle."""
    create(cluster, namespace, pod_body("full", {GPU_MEMORY: 120, GPU_CORE: 100}, nodeSelector=on("core")))
    wait_bound(cluster, namespace, 1)
    create(cluster, namespace, *(pod_body(f"plain{i}", {"cpu": 1}) for i in range(4)))
    wait_bound(cluster, namespace, 5)
    assert set(bound(pods_in(cluster, namespace)).values()) == {"core"}


@pytest.mark.requirement("U4")
def test_a_pod_that_fits_the_node_and_no_gpu_waits_with_a_reason_and_goes_when_there_is_room(
    cluster: ControlPlane, namespace: str
) -> None:
    """U4, "Pending with a reason": node, GPU and rule; scheduled within seconds of a deletion."""
    create(cluster, namespace, *(pod_body(f"full{i}", {GPU_MEMORY: 70}, nodeSelector=on("t4")) for i in range(4)))
    wait_bound(cluster, namespace, 4)  # 50 of 120 units are free on each GPU, 200 on the node
    create(cluster, namespace, pod_body("wide", {GPU_MEMORY: 60}, nodeSelector=on("t4")))
    reason = "t4: GPU 0 has 6.25 GiB of 15 GiB free; the pod needs 7.5 GiB on one GPU"
    cluster.wait(lambda: reason in why_pending(cluster, namespace, "wide"), reason)
    cluster.wait(lambda: any(reason in text for text in events_of(cluster, namespace, "wide", "NoGPUFits")), reason)
    assert "wide" not in bound(pods_in(cluster, namespace))
    # Asked to be deleted is not gone (U4): the pod keeps its GPU until the kubelet has ended it.
    cluster.nodes.set_pod_phase(namespace, "full0", "Running")
    cluster.kubectl("-n", namespace, "delete", "pod", "full0", "--wait=false")
    create(cluster, namespace, pod_body("wake", {GPU_MEMORY: 1}, nodeSelector=on("t4")))
    wait_bound(cluster, namespace, 5)
    assert "wide" not in bound(pods_in(cluster, namespace))
    cluster.nodes.delete_pod_now(namespace, "full0")
    cluster.wait(lambda: "wide" in bound(pods_in(cluster, namespace)), "the waiting pod to be bound")
    assert_nothing_over_allocated(cluster)


@pytest.mark.requirement("U7")
def test_the_seventeenth_pod_of_an_isolated_gpu_waits(cluster: ControlPlane, namespace: str) -> None:
    """At most 16 pods a GPU where memory is isolated, said when scheduling."""
    limits = {GPU_MEMORY: 1, GPU_CORE: 5}
    create(cluster, namespace, *(pod_body(f"p{i}", limits, nodeSelector=on("core")) for i in range(17)))
    wait_bound(cluster, namespace, 16)
    waiting = next(p["metadata"]["name"] for p in pods_in(cluster, namespace) if not p["spec"].get("nodeName"))
    reason = "core: GPU 0 holds 16 pods, the most that a GPU may hold here (16)"
    cluster.wait(lambda: reason in why_pending(cluster, namespace, waiting), reason)


@pytest.mark.requirement("T2", "T3")
def test_topology_gives_the_best_connected_set_and_nothing_else(cluster: ControlPlane, namespace: str) -> None:
    create(
        cluster,
        namespace,
        pod_body("four", {TOPOLOGY_GPU: 4}),
        pod_body("share", {GPU_MEMORY: 1}, nodeSelector=on("nvlink")),
    )
    wait_bound(cluster, namespace, 1)
    assert bound(pods_in(cluster, namespace)) == {"four": "nvlink"}
    assert gpus_of(pods_in(cluster, namespace)[0]) == [0, 1, 2, 3]


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_a_binding_that_was_fenced_off_is_never_executed(cluster: ControlPlane, namespace: str) -> None:
    """However late the API server comes to it; with no more rights than the extender has."""
    body = pod_body("late", {GPU_MEMORY: 1}, schedulerName="nobody")
    created = cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    first = created["metadata"]["resourceVersion"]
    access = load_access(cluster.kubeconfig(SERVICE_ACCOUNT, SERVICE_ACCOUNT_GROUPS))

    async with Connection(access) as connection:
        real = PodApi(connection, lambda: True)
        decision = Decision("t4", (), None)
        late = PodBinding(Ledger(Configuration()), msgspec.convert(created, Pod), decision, first).body
        fenced = await real.fence(namespace, "late")
        assert fenced is not None
        assert fenced.metadata.resource_version != first
        with pytest.raises(Conflict):
            await real.bind(late)
        found = await real.pod(namespace, "late")
        assert found is not None
        assert found.spec.node_name == ""
        assert "late" in [pod.metadata.name for pod in await real.unbound()]
        await real.bind(PodBinding(Ledger(Configuration()), found, decision, found.metadata.resource_version).body)
        bound_since = await real.fence(namespace, "late")
        assert bound_since is not None
        assert bound_since.spec.node_name == "t4"
        assert "late" not in [pod.metadata.name for pod in await real.unbound()]
