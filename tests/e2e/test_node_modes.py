"""Modes and memory units change on a real kubelet, as the documents show it: node object, pods and tables say so."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_MEMORY,
    MODE_LABEL,
    PLACEMENT_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    ConditionType,
)
from gputile.core.devices.allocation import decode_allocation
from tests.e2e.extender import assert_nothing_over_allocated
from tests.e2e.node import GpuNode, gpu_node, probe_pod, runnable_here
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.documents import document_yaml

pytestmark = pytest.mark.requirement("U1", "U3", "M1", "M2", "M3", "M11", "M12", "U5", "U6", "V1")

# What the node of document 003 offers in each mode, four GPUs of 15 GiB; 0 of everything else.
OFFERED: dict[str | None, dict[str, int]] = {
    None: {WHOLE_GPU: 4},
    "default": {WHOLE_GPU: 4},
    "cgpu": {GPU_MEMORY: 60},
    "core_mem": {GPU_MEMORY: 60, GPU_CORE: 400},
    "share": {GPU_MEMORY: 60},
    "topology": {TOPOLOGY_GPU: 4},
    "mps": {},  # there is no MPS control daemon here
}


@pytest.fixture(scope="module")
def four(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Four GPUs of 15 GiB, without a label."""
    with gpu_node(control_plane, node_programs, "four", {}, kind="fifteen") as here:
        yield here


@pytest.mark.requirement("M1", "M2", "M3", "T1")
def test_each_mode_offers_its_own_resources(four: GpuNode) -> None:
    """On the real node object, the others present and zero; whole GPUs come back by both ways."""
    four.wait_offered(OFFERED[None])
    for mode in ("core_mem", "default", "topology", "share", "cgpu", "mps", "cgpu", None):
        four.label({MODE_LABEL: mode})
        four.wait_offered(OFFERED[mode])


@pytest.mark.requirement("M12")
def test_a_mode_change_is_held_while_gpu_pods_run(four: GpuNode, namespace: str) -> None:
    """Condition and event name the pods; nothing is lost; it happens when they are gone."""
    four.label({MODE_LABEL: "share"})
    four.wait_offered(OFFERED["share"])
    four.create(namespace, probe_pod("holder", {GPU_MEMORY: 3}))
    four.wait_running(1, namespace)
    four.label({MODE_LABEL: "topology"})
    four.plane.wait(lambda: four.condition(ConditionType.MODE_PENDING).get("status") == "True", "the condition")
    assert four.condition(ConditionType.MODE_PENDING)["reason"] == "PodsOnNode"
    assert f"{namespace}/holder" in four.condition(ConditionType.MODE_PENDING)["message"]

    def told() -> bool:
        events = four.plane.api.get("/api/v1/events", fieldSelector="involvedObject.kind=Node,reason=PodsOnNode")
        return any(f"{namespace}/holder" in event["message"] for event in events["items"])

    four.plane.wait(told, "the event")
    four.wait_offered(OFFERED["share"])
    four.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/holder")
    four.wait_offered(OFFERED["topology"])
    four.plane.wait(lambda: four.condition(ConditionType.MODE_PENDING)["status"] == "False", "the condition to end")


@pytest.mark.requirement("M9", "V2")
def test_the_tables_of_binpack_and_spread(four: GpuNode, namespace: str) -> None:
    """15 and 9 units fill one GPU before the next; three times 4 units are on three GPUs."""
    four.label({MODE_LABEL: "cgpu", PLACEMENT_LABEL: "binpack"})
    four.wait_offered(OFFERED["cgpu"])
    for name, units in (("large", 15), ("medium", 5), ("small", 4)):
        four.create(namespace, probe_pod(name, {GPU_MEMORY: units}))
        four.wait_running(1 + ("large", "medium", "small").index(name), namespace)
    four.wait_agreement(namespace)
    own, *lines = four.inspected(four.node.name)
    assert (own[2:], ["24/60", "(40%)"] in lines) == (["15/15", "9/15", "0/15", "0/15", "24/60"], True)
    four.clear(namespace)
    four.label({PLACEMENT_LABEL: "spread"})
    for i in range(3):
        four.create(namespace, probe_pod(f"p{i}", {GPU_MEMORY: 4}))
        four.wait_running(i + 1, namespace)
    own, *lines = four.inspected(four.node.name)
    assert sorted(own[2:6]) == ["0/15", "4/15", "4/15", "4/15"]
    assert (own[6], ["12/60", "(20%)"] in lines) == ("12/60", True)
    four.clear(namespace)
    four.label({PLACEMENT_LABEL: None})


def mib_of(here: GpuNode, namespace: str) -> dict[str, int]:
    """Return the MiB that each pod holds by its annotation."""
    return {
        pod["metadata"]["name"]: sum(
            share.mib for share in decode_allocation(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION]).gpus
        )
        for pod in here.pods(namespace)
    }


@pytest.mark.requirement("U2", "U5", "U6")
def test_the_unit_changes_under_running_pods(four: GpuNode, namespace: str) -> None:
    """From 1 GiB to 128 MiB: bytes stay, nothing is oversubscribed, the StatefulSet counts in the new unit."""
    four.label({MODE_LABEL: "cgpu"})
    four.wait_offered(OFFERED["cgpu"])
    four.create(namespace, *(probe_pod(f"old{i}", {GPU_MEMORY: 5}) for i in range(8)))
    four.wait_running(8, namespace)
    before = mib_of(four, namespace)
    assert set(before.values()) == {5120}
    four.configure({"gpuMemoryUnit": "128MiB"})
    four.plane.wait(lambda: int(four.allocatable()[GPU_MEMORY]) > 60, "the new unit")
    four.create(namespace, *(probe_pod(f"new{i}", {GPU_MEMORY: 16}) for i in range(6)))
    stateful = runnable_here(yaml.safe_load(document_yaml("001")[0]))
    four.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(stateful))
    pods = {pod["metadata"]["name"]: pod for pod in four.wait_running(15, namespace)}
    four.wait_agreement(namespace)
    assert four.said(pods["binpack-0"], "binpack-1")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "16"
    after = mib_of(four, namespace)
    assert {name: mib for name, mib in after.items() if name in before} == before
    assert {mib for name, mib in after.items() if name not in before} == {2048}
    assert assert_nothing_over_allocated(four.plane) == 15
    for i in range(8):
        four.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/old{i}")
    four.wait_offered({GPU_MEMORY: 480})  # every unit is of the new size
    own, *_ = four.inspected(four.node.name)
    assert (own[6], {cell.partition("/")[2] for cell in own[2:6]}) == ("112/480", {"120"})
