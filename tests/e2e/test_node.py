"""The agent on a real kubelet, containerd and runc: the right GPU, its rights, what the node says."""

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.well_known import (
    GPU_CORE,
    GPU_COUNT,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    ConditionType,
)
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.files.node_mounts import PLACE_BYTES
from gputile.node.agent.node_config import MODE_RESOURCES
from gputile.node.isolation.library import USAGE
from tests.e2e.extender import assert_nothing_over_allocated, events_of
from tests.e2e.node import (
    DONE,
    LIMITS,
    VISIBLE,
    GpuNode,
    booked_gpus,
    gpu_node,
    probe_container,
    probe_pod,
    probe_pod_of,
    replace,
    runs,
)
from tests.fakes import gpushare_client
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.images import LEAVE, PROBE_IMAGE
from tests.localcluster.nosuid import MIB

NOBODY = 65534
WHO = Path("/usr/bin/id")

pytestmark = pytest.mark.requirement("B1", "V1", "C1")


@pytest.fixture(scope="module")
def shared(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node with eight GPUs of 80 GiB, in mode cgpu."""
    with gpu_node(control_plane, node_programs, "worker", {MODE_LABEL: "cgpu"}, places=64) as here:
        here.plane.wait(lambda: here.allocatable().get(GPU_MEMORY) == "640", "the node to offer its GPUs")
        yield here


@pytest.mark.requirement("B1", "U3", "B9")
def test_a_pod_gets_the_gpu_that_was_booked(shared: GpuNode, namespace: str) -> None:
    """Inside the container, in PodResources and in the annotation."""
    shared.create(namespace, probe_pod("two", {GPU_MEMORY: 2}), probe_pod("none", {}))
    shared.wait_running(2, namespace)
    shared.wait_agreement(namespace)
    pods = {pod["metadata"]["name"]: pod for pod in shared.pods(namespace)}
    said = shared.said(pods["two"], "main")
    assert {said[VISIBLE]} == booked_gpus(pods["two"])["main"]
    assert said["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    assert '"mib":2048' in said[LIMITS]
    assert VISIBLE not in shared.said(pods["none"], "main")
    assert VISIBLE in shared.plane.kubectl("-n", namespace, "logs", "two")
    assert assert_nothing_over_allocated(shared.plane) == 1


@pytest.mark.requirement("B9", "V2")
def test_gpushares_client_shows_what_kubectl_inspect_cgpu_shows(shared: GpuNode, namespace: str) -> None:
    """The summary, and the pods of ``-d``: on one GPU, in two containers, and on two GPUs."""
    shared.create(
        namespace,
        probe_pod("one", {GPU_MEMORY: 3}),
        probe_pod_of("parts", [probe_container(name, {GPU_MEMORY: 2}) for name in ("a", "b")]),
        probe_pod("wide", {GPU_MEMORY: 8}, labels={GPU_COUNT_LABEL: "2"}),
    )
    shared.wait_running(3, namespace)
    shared.wait_agreement(namespace)
    shared.plane.wait(lambda: shared.allocatable().get(GPU_COUNT) == "8", "the number of GPUs that share memory")
    capacity = shared.node.object()["status"]["capacity"]
    assert (capacity[GPU_COUNT], capacity[GPU_MEMORY]) == ("8", "640")
    theirs = gpushare_client.shown([shared.node.object()], shared.pods(namespace))["worker"]
    assert theirs.pending == 0
    summary, details = shared.inspected(), shared.inspected("-d")
    assert [theirs.cells[index] for index in range(8)] == summary[0][2:-1]
    assert theirs.total == summary[0][-1] == "15/640"
    for pod, units in theirs.pods.items():
        assert [*reversed(pod), *(str(units.get(index, 0)) for index in range(8))] in details


def test_the_agent_and_the_kubelet_both_write_the_nodes_status(shared: GpuNode) -> None:
    """The strategic merge patch of the node's status, by the ServiceAccount of examples/agent/rbac.yaml."""
    node = shared.node.object()
    assert decode_inventory(node["metadata"]["annotations"][INVENTORY_ANNOTATION]).mode == "cgpu"
    written = {entry["manager"] for entry in node["metadata"]["managedFields"] if entry.get("subresource") == "status"}
    assert len(written) >= 2, "the kubelet and the agent have both written the status"
    kinds = {condition["type"] for condition in node["status"]["conditions"]}
    assert {"Ready", "MemoryPressure", ConditionType.DRIVER_PROBLEM, ConditionType.CARD_PROBLEM} <= kinds


@pytest.mark.requirement("C1", "C3", "V1", "L1")
def test_the_node_says_what_its_gpus_are(shared: GpuNode) -> None:
    """Labels as nvidia-smi prints them, and only the mode's resource."""
    node = shared.node.object()
    labels = node["metadata"]["labels"]
    assert labels["aliyun.accelerator/nvidia_name"] == "NVIDIA-A100-SXM4-80GB"
    assert labels["aliyun.accelerator/nvidia_mem"] == "81920MiB"
    assert labels["aliyun.accelerator/nvidia_count"] == "8"
    assert labels["alpha.kubernetes.io/nvidia-gpu-name"] == "NVIDIA-A100-SXM4-80GB"
    offered = {name: shared.allocatable()[name] for name in MODE_RESOURCES}
    assert offered == {GPU_MEMORY: "640", GPU_CORE: "0", TOPOLOGY_GPU: "0", WHOLE_GPU: "0"}


@pytest.mark.requirement("U4")
def test_static_pods_get_gpus_and_are_booked(shared: GpuNode) -> None:
    """A pod that neither scheduler nor API server knew is on a GPU that nobody else has."""
    body = probe_pod("static", {GPU_MEMORY: 3}) | {"apiVersion": "v1", "kind": "Pod"}
    body["metadata"]["namespace"] = "default"
    shared.node.put_static_pod("static", body)
    try:
        shared.wait_running(1, "default")
        shared.wait_agreement("default")
        (pod,) = shared.pods("default")
        assert len(booked_gpus(pod)["main"]) == 1
        assert assert_nothing_over_allocated(shared.plane) >= 1
        assert shared.said(pod, "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    finally:
        shared.node.put_static_pod("static", None)
        shared.plane.wait(lambda: not shared.pods("default"), "the static pod to be gone")


@pytest.mark.requirement("B1")
def test_pods_bound_by_hand_get_gpus_and_are_booked(shared: GpuNode, namespace: str) -> None:
    """nodeName set by hand: no booking beforehand, one afterwards; nothing over-allocated."""
    bodies = [probe_pod(f"hand{i}", {GPU_MEMORY: 20}, nodeName=shared.node.name) for i in range(4)]
    shared.create(namespace, *bodies, probe_pod("booked", {GPU_MEMORY: 20}))
    shared.wait_running(5, namespace)
    shared.wait_agreement(namespace)
    assert assert_nothing_over_allocated(shared.plane) >= 5


@pytest.mark.requirement("B1", "G1", "M4")
def test_what_the_kubelet_forgets_is_kept_and_told(shared: GpuNode, namespace: str) -> None:
    """It does not know any more that a sidecar runs, and asks for the next container of the same size."""
    sidecar, unready = probe_container("side", {GPU_MEMORY: 3}, sidecar=True), probe_container("unready", {}, once=True)
    unready |= {"image": "localhost/not-there:1", "imagePullPolicy": "Never"}
    inits = [sidecar, unready]
    shared.create(namespace, probe_pod_of("kept", [probe_container("main", {GPU_MEMORY: 3})], initContainers=inits))

    def side_runs() -> bool:
        return any(DONE in shared.said(pod, "side") for pod in shared.pods(namespace))

    shared.plane.wait(side_runs, "the sidecar to run")
    (pod,) = shared.pods(namespace)
    allocation = shared.node.directory / "state" / "allocations" / f"{pod['metadata']['uid']}-side"
    written = (allocation / "limits", shared.node.usage / USAGE / allocation.name)
    before = [path.stat().st_ino for path in written]
    shared.node.kubelet.kill()
    (shared.node.device_plugins / "kubelet_internal_checkpoint").unlink()
    apiserver = shared.plane.processes["kube-apiserver"]
    apiserver.pause()  # the kubelet hears of no pod before the agent has registered
    try:
        shared.node.kubelet.start()
        shared.plane.wait(lambda: registered(shared, GPU_MEMORY), "the agent to register")
    finally:
        apiserver.resume()
    path = f"/api/v1/namespaces/{namespace}/pods/kept"
    strategic = {"spec": {"initContainers": [{"name": "unready", "image": PROBE_IMAGE}]}}
    shared.plane.api.patch(path, strategic, content_type="application/strategic-merge-patch+json")
    (pod,) = shared.wait_running(1, namespace)
    said = {name: json.loads(shared.said(pod, name)[LIMITS])["container"] for name in ("side", "main")}
    assert said == {"side": "side", "main": "main"}
    assert [path.stat().st_ino for path in written] == before
    held = shared.assigned()
    assert held[namespace, "kept", "side"] == set()
    assert held[namespace, "kept", "main"] == booked_gpus(pod)["main"]
    shared.plane.wait(lambda: bool(events_of(shared.plane, namespace, "kept", "GpuForgotten")), "the event")
    (told,) = set(events_of(shared.plane, namespace, "kept", "GpuForgotten"))
    assert "the GPU allocation of side, " in told
    assert assert_nothing_over_allocated(shared.plane) >= 1
    shared.delete_now(namespace, "kept")
    shared.create(namespace, probe_pod("next", {GPU_MEMORY: 3}))
    shared.plane.wait(lambda: not allocation.exists(), "the allocation to go with its pod")
    shared.wait_running(1, namespace)
    shared.wait_agreement(namespace)


def registered(here: GpuNode, resource: str) -> bool:
    """Return whether the kubelet has written down devices of a resource."""
    path = here.node.device_plugins / "kubelet_internal_checkpoint"
    return path.exists() and bool(json.loads(path.read_text())["Data"]["RegisteredDevices"].get(resource))


ANOTHER_FORMAT = """
from gputile.support import files

read = files.read_whole
files.read_whole = lambda path, most: b"v3" if path.name == "kubelet_internal_checkpoint" else read(path, most)
"""


@pytest.mark.requirement("B1", "L2")
def test_a_kubelet_with_another_format_of_checkpoint(shared: GpuNode, namespace: str, tmp_path: Path) -> None:
    """What runs goes on, and what is new starts by the kubelet's list; a pod with an init container waits."""
    shared.create(namespace, probe_pod("before", {GPU_MEMORY: 2}))
    shared.wait_running(1, namespace)
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_FORMAT)
    younger, url = shared.agent.successor({"PYTHONPATH": str(tmp_path)})
    with younger:
        replace(shared, shared.agent.process, younger, url)
        inits = [probe_container("init", {GPU_MEMORY: 2}, once=True)]
        waits = probe_pod_of("waits", [probe_container("main", {GPU_MEMORY: 2})], initContainers=inits)
        shared.create(namespace, probe_pod("listed", {GPU_MEMORY: 3}), waits)
        pods = {pod["metadata"]["name"] for pod in shared.wait_running(2, namespace)}
        assert pods == {"before", "listed"}
        shared.plane.wait(lambda: "checkpoint cannot be read" in events(shared, namespace), "the event that says why")
        replace(shared, younger, shared.agent.process, shared.agent.url)
    shared.wait_running(3, namespace)
    shared.wait_agreement(namespace)
    assert assert_nothing_over_allocated(shared.plane) >= 3


def hostile(name: str) -> dict[str, object]:
    """Return a pod that does to what it can write on its node what root in a container can."""
    pod = probe_pod(name, {GPU_MEMORY: 2})
    pod["spec"]["containers"][0]["command"] = list(LEAVE)
    return pod


def as_nobody(path: Path) -> str:
    """Run what a file holds as a user without rights who has it open, as by a way past the directories' modes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"/proc/self/fd/{fd}", "-u"]
        return subprocess.run(line, pass_fds=(fd,), capture_output=True, text=True, check=False).stdout.strip()
    finally:
        os.close(fd)


@pytest.mark.requirement("M4", "G5")
def test_root_in_a_container_leaves_nothing_on_the_node(shared: GpuNode, namespace: str, tmp_path: Path) -> None:
    """No program that runs as root for others, no way to others' files and sockets, no disk filled."""
    before = shutil.disk_usage(shared.node.directory).used
    shared.create(namespace, hostile("hostile"))
    (pod,) = shared.wait_running(1, namespace)
    said = shared.said(pod, "main")
    assert "PROBE_CHMOD" not in said
    name = f"{pod['metadata']['uid']}-main"
    usage, allocation = shared.node.usage / USAGE / name, shared.node.directory / "state" / "allocations" / name
    # What it adds to the file ends at the file's own file system.
    assert said["PROBE_ENDED"] == os.strerror(errno.ENOSPC)
    assert usage.stat().st_size <= PLACE_BYTES
    assert int(said["PROBE_ATTRIBUTES"]) < 8 << 10
    # What is below is real: the same program, setuid where that counts, does run as root.
    proof = shared.node.directory / "proof"
    proof.write_bytes(WHO.read_bytes())
    proof.chmod(0o4755)
    assert as_nobody(proof) == "0"
    usage.write_bytes(WHO.read_bytes())  # as root of the container could
    assert usage.stat().st_mode & stat.S_ISUID
    assert as_nobody(usage) in ("", str(NOBODY))  # mounted noexec, or nosuid alone
    assert shutil.disk_usage(shared.node.directory).used - before < MIB << 20
    for path in (usage, allocation / "time.sock", allocation / "limits"):
        shared.plane.wait(path.exists, f"{path.name} to be there")
        reached = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "test", "-e", str(path)]
        assert subprocess.run(reached, check=False).returncode == 1, f"{path} can be reached by others"
    # Its neighbours start all the same.
    shared.create(namespace, probe_pod("neighbour", {GPU_MEMORY: 2}))
    shared.wait_running(2, namespace)


@pytest.mark.requirement("M4")
def test_a_container_that_would_not_be_isolated_does_not_start(shared: GpuNode, namespace: str) -> None:
    """Its library was taken away, and cannot be put back for a while; then it can."""
    library = shared.node.directory / "state" / "library"
    shared.create(namespace, probe_pod("first", {GPU_MEMORY: 2}))
    shared.wait_running(1, namespace)
    shutil.rmtree(library)
    library.write_text("in the way")
    try:
        shared.create(namespace, probe_pod("second", {GPU_MEMORY: 2}))
        shared.plane.wait(lambda: "does not start" in events(shared, namespace), "the event that says why")
        assert not any(runs(pod) for pod in shared.pods(namespace) if pod["metadata"]["name"] == "second")
    finally:
        library.unlink()
    shared.wait_running(2, namespace)
    (version,) = library.iterdir()
    assert all(path.is_file() for path in version.iterdir())


def events(here: GpuNode, namespace: str) -> str:
    found = here.plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return json.dumps([event.get("message", "") for event in found])


@pytest.mark.requirement("B6")
def test_a_sick_gpu_leaves_and_comes_back(shared: GpuNode, namespace: str) -> None:
    """Its units leave what is allocatable, and the next pod goes elsewhere."""
    shared.agent.machine.xid(0, 79)
    shared.plane.wait(lambda: shared.allocatable()[GPU_MEMORY] == "560", "the unhealthy GPU's units to leave")
    shared.create(namespace, probe_pod("elsewhere", {GPU_MEMORY: 80}))
    shared.wait_running(1, namespace)
    shared.wait_agreement(namespace)
    (pod,) = shared.pods(namespace)
    assert booked_gpus(pod)["main"] != {shared.agent.machine.gpus[0].uuid}
