"""Modes and memory units change on a real kubelet, and the real node object says so."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.reasons import ConditionType
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_CORE, GPU_MEMORY, MODE_LABEL, TOPOLOGY_GPU, WHOLE_GPU
from gputile.core.devices.allocation import decode_allocation
from gputile.node.agent.node_config import MODE_RESOURCES
from tests.e2e.extender import assert_nothing_over_allocated
from tests.e2e.node import GpuNode, gpu_node, probe_pod
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("M2", "M3", "M11", "M12", "U5", "U6")

# What four T4 of 15109 MiB offer in each mode; 0 of everything else.
OFFERED: dict[str | None, dict[str, str]] = {
    None: {WHOLE_GPU: "4"},
    "default": {WHOLE_GPU: "4"},
    "cgpu": {GPU_MEMORY: "56"},
    "core_mem": {GPU_MEMORY: "56", GPU_CORE: "400"},
    "share": {GPU_MEMORY: "56"},
    "topology": {TOPOLOGY_GPU: "4"},
    "mps": {},  # there is no MPS control daemon here
}
# Each of these offers other resources and is followed by each other once; the two others offer what share does.
MODES = ("default", "core_mem", "share", "topology")


@pytest.fixture(scope="module")
def labelled(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node with four T4, without a label."""
    with gpu_node(control_plane, node_programs, "labelled", {}, kind="t4") as here:
        yield here


def offered(here: GpuNode) -> dict[str, str]:
    allocatable = here.allocatable()
    return {name: allocatable.get(name, "missing") for name in MODE_RESOURCES}


def wait_offered(here: GpuNode, mode: str | None) -> None:
    wanted = dict.fromkeys(MODE_RESOURCES, "0") | OFFERED[mode]
    try:
        here.plane.wait(lambda: offered(here) == wanted, "the node to offer it", interval=0.2)
    except TimeoutError as error:
        raise AssertionError(f"mode {mode}: the node offers {offered(here)}, not {wanted}") from error


def walk(modes: tuple[str, ...]) -> list[str]:
    """Return a walk on which each mode follows each other one exactly once."""
    left = {one: [other for other in modes if other != one] for one in modes}
    path, found = [modes[0]], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            found.append(path.pop())
    return found[::-1]


@pytest.mark.requirement("M1", "M2", "M3", "T1")
def test_modes_switch_to_each_other(labelled: GpuNode) -> None:
    """Each resource of the real node object after each switch, the others present and zero."""
    wait_offered(labelled, None)
    steps = walk(MODES)
    assert len(set(itertools.pairwise(steps))) == len(MODES) * (len(MODES) - 1)
    for mode in (*steps, "cgpu", "mps", "cgpu"):
        labelled.label({MODE_LABEL: mode})
        wait_offered(labelled, mode)
    labelled.label({MODE_LABEL: None})
    wait_offered(labelled, None)


def condition(here: GpuNode, kind: str) -> dict[str, str]:
    return next((c for c in here.node.object()["status"]["conditions"] if c["type"] == kind), {})


@pytest.mark.requirement("M12")
def test_a_mode_change_is_held_while_gpu_pods_run(labelled: GpuNode, namespace: str) -> None:
    """Condition and event name the pods; nothing is lost; it happens when they are gone."""
    labelled.label({MODE_LABEL: "share"})
    wait_offered(labelled, "share")
    labelled.create(namespace, probe_pod("holder", {GPU_MEMORY: 3}))
    labelled.wait_running(1, namespace)
    labelled.label({MODE_LABEL: "topology"})
    labelled.plane.wait(
        lambda: condition(labelled, ConditionType.MODE_PENDING).get("status") == "True", "the condition"
    )
    assert condition(labelled, ConditionType.MODE_PENDING)["reason"] == "PodsOnNode"
    assert f"{namespace}/holder" in condition(labelled, ConditionType.MODE_PENDING)["message"]

    def told() -> bool:
        events = labelled.plane.api.get("/api/v1/events", fieldSelector="involvedObject.kind=Node,reason=PodsOnNode")
        return any(f"{namespace}/holder" in event["message"] for event in events["items"])

    labelled.plane.wait(told, "the event")
    wait_offered(labelled, "share")
    labelled.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/holder")
    wait_offered(labelled, "topology")
    labelled.plane.wait(
        lambda: condition(labelled, ConditionType.MODE_PENDING)["status"] == "False", "the condition to end"
    )


def mib_of(here: GpuNode, namespace: str) -> dict[str, int]:
    """Return the MiB that each pod holds by its annotation."""
    return {
        pod["metadata"]["name"]: sum(
            share.mib for share in decode_allocation(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION]).gpus
        )
        for pod in here.pods(namespace)
    }


@pytest.mark.requirement("U5", "U6")
def test_the_unit_changes_under_running_pods(labelled: GpuNode, namespace: str) -> None:
    """From 1 GiB to 128 MiB: bytes stay, nothing is oversubscribed, new pods count in the new unit."""
    here = labelled
    here.label({MODE_LABEL: "cgpu"})
    wait_offered(here, "cgpu")
    here.create(namespace, *(probe_pod(f"old{i}", {GPU_MEMORY: 5}) for i in range(8)))
    here.wait_running(8, namespace)
    before = mib_of(here, namespace)
    assert set(before.values()) == {5120}
    here.configure({"gpuMemoryUnit": "128MiB"})
    here.plane.wait(lambda: int(here.allocatable()[GPU_MEMORY]) > 56, "the new unit")
    here.create(namespace, *(probe_pod(f"new{i}", {GPU_MEMORY: 16}) for i in range(6)))
    here.wait_running(14, namespace)
    here.wait_agreement(namespace)
    after = mib_of(here, namespace)
    assert {name: mib for name, mib in after.items() if name in before} == before
    assert {mib for name, mib in after.items() if name not in before} == {2048}
    assert assert_nothing_over_allocated(here.plane) == 14
    for i in range(8):
        here.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/old{i}")
    here.plane.wait(lambda: int(here.allocatable()[GPU_MEMORY]) == 4 * 118, "every unit to be of the new size")
