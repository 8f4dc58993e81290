"""GPUs by claims on a real kubelet and containerd: the right GPU and its limits, whoever dies meanwhile."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gputile.api.resource_claims import RESOURCE_API, RESOURCE_SLICES_PATH
from gputile.api.well_known import CLAIMS_LABEL, GPU_CLASS, GPU_MEMORY, MODE_LABEL, SHARE_CLASS, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.device_table import CLAIM_DIRECTORY_PREFIX
from tests.conftest import examples
from tests.e2e.extender import bound
from tests.e2e.node import (
    LIMITS,
    VISIBLE,
    GpuNode,
    gpu_node,
    kill_agent,
    probe_container,
    probe_pod,
    probe_pod_of,
    replace,
    restart_all,
    restart_kubelet,
    told,
)
from tests.e2e.walkthrough import steps_of
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES

pytestmark = pytest.mark.requirement("B8")

CLASSES = str(EXAMPLES / "extender" / "deviceclasses.yaml")
LABELS = {MODE_LABEL: "cgpu", CLAIMS_LABEL: "true"}


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node whose GPUs are shared by claims."""
    control_plane.kubectl("apply", "-f", CLASSES)
    try:
        with gpu_node(control_plane, node_programs, "claims", LABELS, {"maxPodsPerGpu": 64}, "t4", cdi=True) as here:
            here.plane.wait(lambda: bool(slices(here)), "the node's slice")
            yield here
    finally:
        control_plane.kubectl("delete", "-f", CLASSES)


def slices(here: GpuNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here.plane.api.get(RESOURCE_SLICES_PATH)["items"]
    return found


def claims_path(namespace: str, name: str = "") -> str:
    return f"/apis/{RESOURCE_API}/namespaces/{namespace}/resourceclaims/{name}".rstrip("/")


def create_claim(here: GpuNode, namespace: str, name: str, memory: str = "") -> None:
    """Create a claim for a share of a GPU, or for a whole one."""
    exactly = {"deviceClassName": SHARE_CLASS, "capacity": {"requests": {"memory": memory}}}
    body = {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": exactly if memory else {"deviceClassName": GPU_CLASS}}]}
        },
    }
    here.plane.api.post(claims_path(namespace), body)


def delete_claim(here: GpuNode, namespace: str, name: str) -> None:
    """Delete a claim that may have been deleted before."""
    try:
        here.plane.api.delete(claims_path(namespace, name))
    except ApiError as error:
        if error.status != 404:
            raise


def claiming_pod(name: str, claim: str, **spec: Any) -> dict[str, Any]:
    container = probe_container("main", {}) | {"resources": {"claims": [{"name": "gpu"}]}}
    asks = [{"name": "gpu", "resourceClaimName": claim}]
    return probe_pod_of(name, [container], resourceClaims=asks, **spec)


def start(here: GpuNode, namespace: str, memory: str, *names: str) -> None:
    for name in names:
        create_claim(here, namespace, name, memory)
    here.create(namespace, *(claiming_pod(name, name) for name in names))


def allocated_uuid(here: GpuNode, namespace: str, claim: str) -> str:
    """Return the GPU that kube-scheduler has allocated."""
    (result,) = here.plane.api.get(claims_path(namespace, claim))["status"]["allocation"]["devices"]["results"]
    index = int(result["device"].removeprefix("gpu-"))
    inventory = decode_inventory(here.node.object()["metadata"]["annotations"]["gputile.io/inventory"])
    return next(gpu.uuid for gpu in inventory.gpus if gpu.index == index)


def wrong(here: GpuNode, namespace: str, mib: int) -> list[str]:
    """Return what containers see that is not what was allocated."""
    found = []
    for pod in here.pods(namespace):
        name, said = pod["metadata"]["name"], here.said(pod, "main")
        uuid = allocated_uuid(here, namespace, name)
        if (
            said.get(VISIBLE) != uuid
            or said.get("CARD_BY_CDI") != uuid
            or f'"mib":{mib}' not in said.get(LIMITS, "")
            or uuid not in said[LIMITS]
        ):
            found.append(f"{name}: allocated {uuid}, sees {said.get(VISIBLE)}, limits {said.get(LIMITS)}")
    return found


def end(here: GpuNode, namespace: str) -> None:
    """Delete pods and claims, and wait until nothing is left of them on the node."""
    for pod in here.pods(namespace):
        here.delete_now(namespace, pod["metadata"]["name"])
    for claim in here.plane.api.get(claims_path(namespace))["items"]:
        delete_claim(here, namespace, claim["metadata"]["name"])
    here.plane.wait(lambda: not left(here), "claims to be released", 180.0, 0.5)


def left(here: GpuNode) -> list[str]:
    """Return what lies on the node of claims."""
    directories = (here.node.directory / "state" / "allocations").glob(f"{CLAIM_DIRECTORY_PREFIX}*")
    files = (here.node.directory / "cdi").glob("gputile.io-claim-*")
    return sorted(path.name for path in (*directories, *files))


def test_the_slice_offers_shares_and_the_node_no_extended_resource(node: GpuNode) -> None:
    (found,) = slices(node)
    assert [each["name"] for each in found["spec"]["devices"]] == [f"gpu-{index}" for index in range(4)]
    assert all(each["allowMultipleAllocations"] for each in found["spec"]["devices"])
    assert node.allocatable().get(GPU_MEMORY, "0") == "0"
    status = {each["type"]: each["status"] for each in node.node.object()["status"]["conditions"]}
    assert status["gputile.io/ClaimsRefused"] == "False"


def test_a_pod_gets_the_gpu_that_was_allocated_with_its_limits(node: GpuNode, namespace: str) -> None:
    start(node, namespace, "8Gi", "one", "two", "three")
    node.wait_running(3, namespace)
    assert wrong(node, namespace, 8192) == []
    end(node, namespace)


@pytest.mark.timeout(900)
def test_pods_start_whoever_is_killed(node: GpuNode, namespace: str) -> None:
    """The agent, the kubelet, and all at once; claims are deleted while they are prepared, and agents replaced.

    No pod fails, each that is left gets its own GPU, and nothing is left at the end.
    """
    count, chance, there = examples(40), random.Random(38), set[str]()
    deeds = [kill_agent, restart_kubelet, restart_all]
    begun = time.monotonic()
    for begin in range(0, count, 10):
        names = [f"p{number}" for number in range(begin, begin + 10)]
        start(node, namespace, "256Mi", *names)
        there.update(names)
        time.sleep(chance.uniform(0.0, 2.0))
        for name in chance.sample(sorted(there), 2):
            there.remove(name)
            node.delete_now(namespace, name)
            delete_claim(node, namespace, name)
        for name in sorted(bound(node.pods(namespace)).keys() & there)[:1]:
            delete_claim(node, namespace, name)  # in use: it stays until the pod has gone
        chance.choice(deeds)(node)
    younger, url = node.agent.successor()
    replace(node, node.agent.process, younger, url)
    node.wait_running(len(there), namespace, timeout=500.0)
    print(f"{len(there)} of {count} pods run after {time.monotonic() - begun:.0f} s, {count // 10} kills")
    assert {pod["metadata"]["name"]: told(pod) for pod in node.pods(namespace)}.keys() == there
    assert wrong(node, namespace, 256) == []
    replace(node, younger, node.agent.process, node.agent.url)
    node.agent.kill_agent()
    end(node, namespace)


def container_id(pod: Mapping[str, Any]) -> str:
    (container,) = pod["status"]["containerStatuses"]
    return str(container["containerID"])


@pytest.mark.timeout(600)
def test_pods_wait_for_an_agent_that_is_away(node: GpuNode, namespace: str) -> None:
    """Half a minute after the driver has gone the kubelet deletes the slice; pods that have their GPUs run on."""
    start(node, namespace, "1Gi", "before")
    (before,) = node.wait_running(1, namespace)
    node.agent.process.stop()
    start(node, namespace, "1Gi", "allocated")
    node.plane.wait(lambda: not slices(node), "the kubelet to delete the slice", 120.0, 0.5)
    start(node, namespace, "1Gi", "later")
    node.agent.process.start()
    after = {pod["metadata"]["name"]: pod for pod in node.wait_running(3, namespace)}
    assert container_id(after["before"]) == container_id(before)
    assert wrong(node, namespace, 1024) == []
    end(node, namespace)


def test_a_slice_that_somebody_deletes_is_there_again(node: GpuNode) -> None:
    (before,) = slices(node)
    node.plane.api.delete(f"{RESOURCE_SLICES_PATH}/{before['metadata']['name']}")
    node.plane.wait(lambda: [each["spec"] for each in slices(node)] == [before["spec"]], "the slice again")


def test_the_kubelet_knows_of_prepared_claims_what_the_agent_reads(node: GpuNode, namespace: str) -> None:
    """The format of its private file, by which the agent tells claims of the past."""
    start(node, namespace, "1Gi", "one")
    node.wait_running(1, namespace)
    uid = node.plane.api.get(claims_path(namespace, "one"))["metadata"]["uid"]
    assert uid in (node.node.directory / "kubelet" / "dra_manager_state").read_text()
    assert f"{CLAIM_DIRECTORY_PREFIX}{uid}" in left(node)
    end(node, namespace)


def execute(here: GpuNode, command: str) -> str:
    """Execute a command of the guide as the cluster's administrator; return what it prints."""
    paths = here.plane.programs["kubectl"].parent, Path(sys.executable).parent, os.environ["PATH"]
    environment = {
        "PATH": ":".join(map(str, paths)),
        "KUBECONFIG": str(here.plane.kubeconfig()),
        "HOME": "/nonexistent",
    }
    line = ["bash", "-c", command.replace("gpu-1", here.node.name)]
    done = subprocess.run(line, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_commands_of_the_guide_move_a_node_back_and_forth(node: GpuNode, namespace: str) -> None:
    """The node changes when its pods have gone: those of claims, and those that are evicted."""
    commands = [step.command for step in steps_of(EXAMPLES.parent / "docs" / "guides" / "claims.md")]
    drain, get_slices = (next(each for each in commands if name in each) for name in ("drain", "get resourceslices"))
    back = commands.index("kubectl label node gpu-1 gputile.io/claims-")
    start(node, namespace, "1Gi", "one")
    node.wait_running(1, namespace)
    execute(node, commands[back])
    node.plane.wait(lambda: node.condition("gputile.io/ModePending").get("status") == "True", "the change to wait")
    assert len(slices(node)) == 1
    end(node, namespace)
    node.plane.wait(lambda: int(node.allocatable().get(GPU_MEMORY, "0")) > 0, "extended resources")
    node.plane.wait(lambda: not slices(node), "the slice to be gone")
    labels = {"app": "speech"}
    pod = {"metadata": {"labels": labels}, "spec": probe_pod("speech", {GPU_MEMORY: 2})["spec"]}
    deployment = {"metadata": {"name": "speech"}, "spec": {"selector": {"matchLabels": labels}, "template": pod}}
    pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": node.node.name}}
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    node.plane.api.post(deployments, deployment)
    assert "app=speech" in drain
    node.wait_running(1, namespace)
    for command in commands[:back]:
        if command == get_slices:
            node.plane.wait(lambda: bool(slices(node)), "the slice")
        printed = execute(node, command)
        assert command != get_slices or node.node.name in printed
    assert not bound(node.pods(namespace)), "it asks by extended resources"
    node.plane.api.delete(f"{deployments}/speech")
    for command in commands[back + 1 :]:
        printed = execute(node, command)
        if "apply" in command:
            node.plane.wait(lambda: "claims-share" in bound(node.pods("default")), "the pod with a share")
        assert "get" not in command or "allocated,reserved" in printed
        assert "explain" not in command or node.node.name in printed


def test_without_its_feature_gate_shares_are_refused_and_whole_gpus_given(
    control_plane_programs: dict[str, Path], node_programs: dict[str, Path]
) -> None:
    """An API server as before 1.36 drops the field of a slice that lets claims share a GPU."""
    without = ["--feature-gates=DRAConsumableCapacity=false"]
    with ControlPlane(control_plane_programs, apiserver_arguments=without) as plane:
        plane.kubectl("apply", "-f", CLASSES)
        namespace = plane.create_namespace("older")
        with gpu_node(plane, node_programs, "older", LABELS, kind="t4", cdi=True) as here:
            plane.wait(lambda: here.condition("gputile.io/ClaimsRefused").get("status") == "True", "the refusal")
            assert "DRAConsumableCapacity" in here.condition("gputile.io/ClaimsRefused")["message"]
            assert slices(here) == []
            here.label({MODE_LABEL: Mode.EXCLUSIVE.value})
            plane.wait(lambda: bool(slices(here)), "the slice of whole GPUs")
            create_claim(here, namespace, "whole")
            here.create(namespace, claiming_pod("whole", "whole"))
            (pod,) = here.wait_running(1, namespace)
            assert here.said(pod, "main")[VISIBLE] == allocated_uuid(here, namespace, "whole")
            end(here, namespace)
            here.label({MODE_LABEL: "cgpu", CLAIMS_LABEL: None})
            plane.wait(lambda: int(here.allocatable().get(GPU_MEMORY, "0")) > 0, "extended resources")
            here.create(namespace, probe_pod("share", {GPU_MEMORY: 2}))
            here.wait_running(1, namespace)
            here.clear(namespace)
