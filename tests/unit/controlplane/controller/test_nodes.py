"""Taints, and nodes whose agent is silent."""

import asyncio
import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, ControllerConfiguration
from gputile.api.core import Node, NodeCondition, Pod, Taint
from gputile.api.well_known import GPU_MEMORY, TAINTED_ANNOTATION, WHOLE_GPU, ConditionType
from gputile.controlplane.controller.api_server import ApiServerWriter, JsonPatch
from gputile.controlplane.controller.node_reconciler import (
    NodeReconciler,
    SilentNodes,
    WorkQueue,
    condition_patch,
    diagnose,
    taint_patch,
)
from gputile.kube.errors import AnswerLost, Conflict, Invalid, NotFound
from tests.conftest import HANGS_S
from tests.fakes.corebuilders import gpu_node
from tests.unit.core.admission.test_properties import by_the_book

pytestmark = pytest.mark.requirement("B7", "G7", "M2", "U5")


OURS = {"key": WHOLE_GPU, "effect": "NoSchedule"}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def with_taints(node: Node, *taints: Taint, ours: bool = False) -> Node:
    annotations = node.metadata.annotations | ({TAINTED_ANNOTATION: "true"} if ours else {})
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, annotations=annotations, resource_version="7"),
        spec=msgspec.structs.replace(node.spec, taints=list(taints)),
    )


def applied(node: Node, patch: JsonPatch) -> dict[str, Any]:
    """Apply a patch as RFC 6902 says."""
    document: dict[str, Any] = {"spec": {}, "metadata": {"resourceVersion": "7"}}
    if node.spec.taints:
        document["spec"]["taints"] = [msgspec.to_builtins(taint) for taint in node.spec.taints]
    if node.metadata.annotations:
        document["metadata"]["annotations"] = copy.copy(node.metadata.annotations)
    found: dict[str, Any] = by_the_book(patch, document)
    return found


OTHER = Taint(key="dedicated", value="x", effect="NoExecute")
OWN = Taint(key=WHOLE_GPU, effect="NoSchedule")
GKE = Taint(key=WHOLE_GPU, value="present", effect="NoSchedule")
SOFT = Taint(key=WHOLE_GPU, effect="PreferNoSchedule")
BARE = gpu_node(inventory="")


@pytest.mark.parametrize("taints", [(), (OTHER,), (OTHER, SOFT)])
def test_a_gpu_node_gets_the_taint_beside_those_it_has(taints: tuple[Taint, ...]) -> None:
    node = with_taints(gpu_node(mode="cgpu"), *taints)
    done = applied(node, taint_patch(node, True))
    assert done["spec"]["taints"] == [*map(msgspec.to_builtins, taints), OURS]
    assert done["metadata"]["annotations"][TAINTED_ANNOTATION] == "true"


@pytest.mark.parametrize("taint", [OWN, GKE])
def test_a_taint_that_is_there_already_stays_as_it_is(taint: Taint) -> None:
    assert taint_patch(with_taints(gpu_node(), taint), True) == []
    assert taint_patch(with_taints(gpu_node(), taint), False) == [], "nor is it ours to remove"
    assert taint_patch(with_taints(BARE, taint), True) == []


@pytest.mark.parametrize(("node", "wanted"), [(BARE, True), (gpu_node(), False)])
def test_only_a_taint_of_ours_goes_when_it_is_not_wanted_any_more(node: Node, wanted: bool) -> None:
    tainted = with_taints(node, OTHER, OWN, ours=True)
    done = applied(tainted, taint_patch(tainted, wanted))
    assert done["spec"]["taints"] == [msgspec.to_builtins(OTHER)]
    assert TAINTED_ANNOTATION not in done["metadata"]["annotations"]
    gone_by_hand = with_taints(node, OTHER, ours=True)
    assert TAINTED_ANNOTATION not in applied(gone_by_hand, taint_patch(gone_by_hand, wanted))["metadata"]["annotations"]


def test_which_nodes_are_gpu_nodes() -> None:
    """Those of gputile: not a node whose GPUs another device plugin offers, nor one without GPUs."""
    offered = msgspec.structs.replace(BARE.status, capacity={GPU_MEMORY: "60"})
    foreign = msgspec.structs.replace(BARE.status, capacity={WHOLE_GPU: "4", GPU_MEMORY: "nonsense"})
    for node, tainted in (
        (gpu_node(inventory="{"), True),
        (gpu_node(sizes=()), False),
        (msgspec.structs.replace(BARE, status=offered), True),
        (msgspec.structs.replace(BARE, status=foreign), False),
        (BARE, False),
    ):
        assert bool(taint_patch(node, True)) == tainted


def silent(mode: str = "cgpu", **amounts: str) -> Node:
    return gpu_node(mode=mode, allocatable=amounts)


def test_what_an_agent_that_is_not_there_cannot_say() -> None:
    configuration = Configuration()
    assert diagnose(BARE, configuration) is None
    assert diagnose(silent(**{GPU_MEMORY: "60"}), configuration) is None
    assert diagnose(silent("", **{WHOLE_GPU: "4"}), configuration) is None
    assert diagnose(gpu_node(mode="cgpu", unhealthy=(0, 1, 2, 3)), configuration) is None, "its agent says that"
    nothing = diagnose(silent(**{GPU_MEMORY: "0"}), configuration)
    assert nothing is not None
    assert nothing.reason == "NothingOffered"
    assert f"reported 4 GPUs in mode cgpu, but its kubelet offers no {GPU_MEMORY}" in nothing.message
    no_agent = diagnose(gpu_node(mode="cgpu", inventory=""), configuration)
    assert no_agent is not None
    assert no_agent.reason == "NoAgent"
    invalid = diagnose(gpu_node(mode="fast", inventory=""), configuration)
    assert invalid is not None
    assert invalid.at_once
    assert "valid are default, cgpu, core_mem, share, mps, topology" in invalid.message
    unreadable = diagnose(gpu_node(inventory="{"), configuration)
    assert unreadable is not None
    assert unreadable.reason == "InventoryUnreadable"
    text = '{"version": 1, "mode": "fast", "cards": [{"index": 0, "uuid": "a", "mib": 1024}]}'
    for node in (gpu_node(inventory=text), gpu_node(mode="share", inventory=text)):
        unknown = diagnose(node, configuration)
        assert unknown is not None
        assert unknown.reason == "InventoryUnreadable", "it is not the label that is wrong"
        assert "names the mode 'fast'" in unknown.message


def test_a_condition_is_written_when_it_says_something_new() -> None:
    node = silent()
    found = diagnose(node, Configuration())
    patch = condition_patch(node, found, NOW)
    assert patch is not None
    entry = patch["status"]["conditions"][0]
    assert (entry["type"], entry["status"], entry["lastTransitionTime"]) == (
        ConditionType.AGENT_SILENT,
        "True",
        "2030-01-01T00:00:00Z",
    )
    assert found is not None
    said = NodeCondition(type=ConditionType.AGENT_SILENT, status="True", reason=found.reason, message=found.message)
    telling = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=[said]))
    assert condition_patch(telling, found, NOW) is None
    better = condition_patch(telling, None, NOW)
    assert better is not None
    assert better["status"]["conditions"][0]["status"] == "False"
    assert condition_patch(BARE, None, NOW) is None


class Writer(ApiServerWriter):
    """Fails as told, and then writes."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.patches: list[Any] = []
        self.said: list[str] = []
        self.wrote = asyncio.Event()

    async def patch_node(self, name: str, patch: JsonPatch) -> None:
        self._write(patch)

    async def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        self._write(patch)

    def _write(self, patch: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append(patch)
        self.wrote.set()

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        self.said.append(reason)


FAILURES = [
    Conflict(409, "Conflict", "changed"),
    AnswerLost("no answer"),
    Invalid(422, "Invalid", "the test failed"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_write_that_failed_is_tried_again(failure: Exception) -> None:
    async def scenario() -> Writer:
        writer, node = Writer(failure), gpu_node(allocatable={WHOLE_GPU: "4"})
        keeper = NodeReconciler(writer, Configuration(), {"n": node}.get, lambda: True, lambda: 0.0)
        keeper.queue.add("n")
        task = asyncio.create_task(keeper.queue.run())
        async with asyncio.timeout(HANGS_S):
            await writer.wrote.wait()
        task.cancel()
        return writer

    assert len((await scenario()).patches) == 1


@pytest.mark.anyio
async def test_a_silent_agent_is_told_of_when_it_lasts_and_only_by_the_active_replica() -> None:
    now, active, nodes = [0.0], [False], {"n": silent()}
    configuration = Configuration(controller=ControllerConfiguration(taint_nodes=False, agent_silent_seconds=30))
    writer = Writer()
    keeper = NodeReconciler(writer, configuration, nodes.get, lambda: active[0], lambda: now[0])
    await keeper.work("n")
    active[0] = True
    await keeper.work("n")
    now[0] = 29.0
    await keeper.work("n")
    assert not writer.patches
    now[0] = 31.0
    await keeper.work("n")
    assert writer.said == ["NothingOffered"]
    nodes["n"] = silent(**{GPU_MEMORY: "60"})
    await keeper.work("n")
    nodes["n"] = silent()
    await keeper.work("n")
    assert len(writer.patches) == 1, "the patience begins anew"
    writer.failures.append(NotFound(404, "NotFound", "no such node"))
    now[0] = 99.0
    await keeper.work("n")
    await keeper.work("gone")


@pytest.mark.anyio
async def test_what_is_added_while_it_is_worked_on_is_worked_on_once_more() -> None:
    worked, done = 0, asyncio.Event()

    async def work(key: str) -> None:
        nonlocal worked
        worked += 1
        if worked == 1:
            queue.add(key)
            queue.add(key)
        else:
            done.set()

    queue = WorkQueue(work)
    running = asyncio.create_task(queue.run())
    queue.add("a")
    async with asyncio.timeout(60):
        await done.wait()
    await asyncio.sleep(0)
    running.cancel()
    assert worked == 2


def telling(name: str, status: str = "True") -> Node:
    found = gpu_node(name)
    said = (NodeCondition(type=ConditionType.AGENT_SILENT, status=status),)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=said))


def test_nodes_that_are_silent_for_a_moment_each_are_not_one_that_is_silent_for_long() -> None:
    now, nodes = [100.0], dict[str, Node]()
    silent = SilentNodes(nodes, lambda: now[0])
    assert silent.since() == []
    nodes["a"] = telling("a")
    assert silent.since() == [100]
    now[0], nodes["b"] = 200.0, telling("b")
    assert silent.since() == [100, 200]
    nodes["a"] = telling("a", "False")
    assert silent.since() == [200]
    del nodes["b"]
    assert silent.since() == []
