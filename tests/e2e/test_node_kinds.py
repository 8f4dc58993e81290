"""Nodes of other kinds on a real kubelet, containerd and runc: unlike GPUs, MIG, CDI, MPS."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY, MODE_LABEL, REPLICAS_LABEL, SHARING_LABEL, WHOLE_GPU, ConditionType
from tests.e2e.extender import assert_nothing_over_allocated, why_pending
from tests.e2e.node import VISIBLE, GpuNode, booked_gpus, gpu_node, probe_container, probe_pod, probe_pod_of
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.processes import daemons

pytestmark = pytest.mark.requirement("C1", "G3", "L2", "M7")

MIG_1G, MIG_2G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"


@pytest.fixture
def mixed(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Two T4 of 15109 MiB and two V100 of 16130 MiB."""
    with gpu_node(control_plane, node_programs, "mixed", {MODE_LABEL: "cgpu"}, kind="mixed") as here:
        yield here


@pytest.mark.requirement("U1", "C1")
def test_each_of_unlike_gpus_counts_by_its_own_size(mixed: GpuNode, namespace: str) -> None:
    """14 units of a T4, 15 of a V100; what only the larger GPUs can hold goes there, labels do not lie."""
    mixed.wait_offered({GPU_MEMORY: 14 + 14 + 15 + 15})
    mixed.create(namespace, probe_pod("large-1", {GPU_MEMORY: 15}), probe_pod("large-2", {GPU_MEMORY: 15}))
    mixed.wait_running(2, namespace)
    mixed.create(namespace, probe_pod("small-1", {GPU_MEMORY: 14}), probe_pod("small-2", {GPU_MEMORY: 14}))
    mixed.wait_running(4, namespace)
    mixed.wait_agreement(namespace)
    v100 = {gpu.uuid for gpu in mixed.agent.machine.gpus if "V100" in gpu.name}
    large = [pod for pod in mixed.pods(namespace) if pod["metadata"]["name"].startswith("large")]
    assert {uuid for pod in large for uuid in booked_gpus(pod)["main"]} == v100
    assert assert_nothing_over_allocated(mixed.plane) == 4
    labels = mixed.node.object()["metadata"]["labels"]
    assert "aliyun.accelerator/nvidia_name" not in labels
    assert {"model.gputile.io/Tesla-T4", "model.gputile.io/Tesla-V100-PCIE-16GB"} <= labels.keys()


@pytest.fixture
def split(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Two A100, one of them split into MIG instances."""
    with gpu_node(control_plane, node_programs, "split", {SHARING_LABEL: "mig"}, kind="mig") as here:
        yield here


@pytest.mark.requirement("G3")
def test_mig_instances_and_the_whole_gpu_beside_them(split: GpuNode, namespace: str) -> None:
    """Each instance once, under NVIDIA's name, and no container sees another's."""
    split.wait_offered({MIG_1G: 2, MIG_2G: 1, WHOLE_GPU: 1})
    bodies = [probe_pod(f"small-{i}", {MIG_1G: 1}) for i in range(2)]
    split.create(namespace, *bodies, probe_pod("two", {MIG_2G: 1}), probe_pod("whole", {WHOLE_GPU: 1}))
    pods = {pod["metadata"]["name"]: pod for pod in split.wait_running(4, namespace)}
    seen = {name: split.said(pod, "main")[VISIBLE] for name, pod in pods.items()}
    cut, whole = split.agent.machine.gpus
    small = {i.uuid for i in cut.instances if i.name.endswith("1g.10gb")}
    assert {seen["small-0"], seen["small-1"]} == small
    assert seen["two"] in {i.uuid for i in cut.instances if i.name.endswith("2g.20gb")}
    assert seen["whole"] == whole.uuid


@pytest.mark.requirement("G3", "G5")
def test_replicas_of_whole_gpus_are_for_one_trust_group(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """Time-slicing gives each GPU three times, to different pods first on different GPUs, also to a pod's containers.

    The extender refuses a stranger, as the node would, so a Deployment of one makes one pod, and none that fails.
    """
    labels = {SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "3"}
    other = control_plane.create_namespace(f"{namespace}-o")
    with gpu_node(control_plane, node_programs, "sliced", labels, kind="t4") as here:
        here.wait_offered({WHOLE_GPU: 12})
        here.create(namespace, *(probe_pod(f"p{i}", {WHOLE_GPU: 1}) for i in range(4)))
        here.wait_running(4, namespace)
        template = {"metadata": {"labels": {"app": "stranger"}}, "spec": probe_pod("x", {WHOLE_GPU: 1})["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": "stranger"}}, "template": template}
        body = {"metadata": {"name": "stranger"}, "spec": spec}
        control_plane.api.post(f"/apis/apps/v1/namespaces/{other}/deployments", body)
        control_plane.wait(lambda: len(here.pods(other)) == 1, "the pod of the Deployment")
        name = here.pods(other)[0]["metadata"]["name"]
        told = "another trust group, and time-slicing does not isolate memory"
        control_plane.wait(lambda: told in why_pending(control_plane, other, name), "the reason")
        containers = [probe_container(f"c{i}", {WHOLE_GPU: 1}) for i in range(8)]
        here.create(namespace, probe_pod_of("p4", containers))
        pods = here.wait_running(5, namespace)
        seen = [here.said(pod, each["name"])[VISIBLE] for pod in pods for each in pod["spec"]["containers"]]
        here.wait_agreement(namespace)
        assert {uuid: seen.count(uuid) for uuid in seen} == {gpu.uuid: 3 for gpu in here.agent.machine.gpus}
        (pod,) = here.pods(other)
        assert (pod["metadata"]["name"], pod["status"]["phase"]) == (name, "Pending")
        control_plane.api.delete(f"/apis/apps/v1/namespaces/{other}/deployments/stranger")
    control_plane.api.delete(f"/api/v1/namespaces/{other}")


@pytest.mark.requirement("B1", "L2")
def test_the_runtime_gives_the_booked_gpu_by_cdi(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """The toolkit's specification appears while the agent runs; kubelet and containerd inject what the agent names."""
    with gpu_node(control_plane, node_programs, "cdi", {MODE_LABEL: "cgpu"}, kind="t4", cdi=True) as here:
        here.wait_offered({GPU_MEMORY: 56})
        here.create(namespace, *(probe_pod(f"p{i}", {GPU_MEMORY: 9}) for i in range(4)))
        here.wait_running(4, namespace)
        here.wait_agreement(namespace)
        for pod in here.pods(namespace):
            assert {here.said(pod, "main")["CARD_BY_CDI"]} == booked_gpus(pod)["main"]


@pytest.mark.requirement("M7")
def test_mps_through_daemons_that_outlive_the_agent(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """No daemon, no memory and a condition; with it each client has its pipe and its limit."""
    with gpu_node(control_plane, node_programs, "mps", {MODE_LABEL: "mps"}, kind="t4") as here:
        here.wait_offered({GPU_MEMORY: 0})
        here.plane.wait(lambda: here.condition(ConditionType.MPS_PROBLEM).get("status") == "True", "the condition")
        assert "is not installed" in here.condition(ConditionType.MPS_PROBLEM)["message"]
        program = here.agent.programs / "nvidia-cuda-mps-control"
        program.write_text('#!/bin/sh\ntouch "$CUDA_MPS_PIPE_DIRECTORY/control"\nexec sleep 3600\n')
        program.chmod(0o755)
        here.wait_offered({GPU_MEMORY: 56})
        here.create(namespace, probe_pod("client", {GPU_MEMORY: 4}))
        (pod,) = here.wait_running(1, namespace)
        here.wait_agreement(namespace)
        said = here.said(pod, "main")
        assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
        assert said["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        state = here.node.directory / "state"
        before, agents = daemons(state), here.agent.pids()
        assert len(before) == 4
        here.agent.kill_agent()
        here.plane.wait(lambda: here.agent.pids() != agents and here.agent.is_ready(), "the next agent")
        here.create(namespace, probe_pod("later", {GPU_MEMORY: 4}))
        here.wait_running(2, namespace)
        assert daemons(state) == before
        os.kill(before[0], signal.SIGKILL)
        here.plane.wait(lambda: len(daemons(state)) == 4 and daemons(state) != before, "another daemon")
