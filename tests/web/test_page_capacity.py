"""What still fits, as the page says it, and what if draws it."""

import json

import msgspec
import pytest

from gputile.api.core import NodeCondition, NodeSpec
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, MIG_PREFIX
from gputile.core.placement.free_memory import free_memory
from tests.fakes.corebuilders import allocation_text, gpu_node, ledger_of, pod, share
from tests.localcluster.browser import Tab
from tests.unit.tools.web.pages import GIB, machine, served
from tests.web.test_page import blocks, look

# A browser stops loading whenever a network of the machine changes, as the tests of nodes have it.
pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.requirement("B7")]


async def test_free_mig_instances_are_counted_by_profile(tab: Tab) -> None:
    small, large = MIG_PREFIX + "1g.5gb", MIG_PREFIX + "3g.20gb"
    split = {
        name: gpu_node(name, mode="default", sizes=[], allocatable={"pods": "110", small: "4", large: "1"})
        for name in ("a", "b", "closed")
    }
    cordoned = msgspec.structs.replace(split["closed"], spec=NodeSpec(unschedulable=True))
    holding = pod("p", node="a", asks={small: 3})
    async with served(split["a"], split["b"], cordoned, holding) as page:
        await look(tab, page)
        await tab.key("3")
        rows = "[...document.querySelectorAll('#view-capacity table.profiles tbody tr')]"
        cells = f"{rows}.map((row) => [...row.children].map((cell) => cell.textContent))"
        await tab.until(f"{rows}.length")
        assert await tab.run(cells) == [["1g.5gb", "5", "8"], ["3g.20gb", "2", "2"]]
        assert tab.errors == []


async def test_a_hole_is_counted_from_its_lower_bound_on_as_in_the_metrics(tab: Tab) -> None:
    """What has 8 GiB free takes a pod of 8 GiB: it is no hole of less."""
    sizes = [512, GIB, 8 * GIB, 15 * GIB, 128 * GIB]
    node = gpu_node("a", mode="cgpu", sizes=sizes, unit_mib=512, allocatable={GPU_MEMORY: "305", "pods": "110"})
    holes = free_memory(ledger_of(node)).free_by_step
    assert list(holes) == [512, GIB, 0, 0, 23 * GIB, 0, 0, 0, 128 * GIB]
    async with served(node) as page:
        await look(tab, page)
        await tab.key("3")
        rows = "[...document.querySelector('#view-capacity table tbody').rows]"
        shown = await tab.run(f"{rows}.map((row) => [...row.cells].slice(0, 3).map((cell) => cell.textContent))")
        assert [together for _, _, together in shown] == [
            *("0.50 GiB", "1 GiB", "0 GiB", "0 GiB", "23 GiB", "0 GiB", "0 GiB", "0 GiB", "128 GiB")
        ]
        assert [shown[number][:2] for number in (0, 4, 8)] == [
            ["under 1 GiB", "1"],
            ["8 to under 16 GiB", "2"],
            ["128 GiB and more", "1"],
        ]
        assert tab.errors == []


async def test_capacity_is_of_nodes_that_take_pods_and_of_turns_that_are_free(tab: Tab) -> None:
    down = machine("down")
    unknown = NodeCondition(type="Ready", status="Unknown", reason="NodeStatusUnknown", message="no news")
    status = msgspec.structs.replace(down.status, conditions=(unknown,))
    offered = {"nvidia.com/gpu": "4", "pods": "110"}
    sliced = gpu_node("sliced", sizes=[20 * GIB], replicas=4, allocatable=offered)
    held = {ALLOCATION_ANNOTATION: allocation_text(share("GPU-sliced-0", 20 * GIB, 100), whole=True)}
    turn = pod("turn", node="sliced", asks={"nvidia.com/gpu": 1}, annotations=held)
    async with served(msgspec.structs.replace(down, status=status), sliced, turn) as page:
        await look(tab, page)
        await tab.key("3")
        text = await tab.run("document.querySelector('#view-capacity .cards').textContent")
        assert "Largest share that fitsnone" in text
        assert "Whole GPUs that are free0" in text
        assert "Free replicas3of 4 on time-sliced GPUs" in text
        assert "Free memory15 GiB75 % of 20 GiB" in text
        manifest = (
            "{apiVersion: v1, kind: Pod, metadata: {name: new}, spec: {containers: "
            "[{name: main, image: example, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
        )
        await tab.key("4")
        await tab.run(
            f"document.querySelector('#view-what-if textarea').value = {json.dumps(manifest)};"
            "document.querySelector('#view-what-if form').requestSubmit()"
        )
        await tab.until("document.querySelector('#view-what-if table')")
        await tab.run("document.activeElement.blur()")
        await tab.key("1")
        await tab.until("document.querySelector('.block.ghost')")
        assert (await blocks(tab))[("sliced", 0)] == {
            "default/turn": pytest.approx(25, abs=1),
            "default/new": pytest.approx(25, abs=1),
        }
        assert tab.errors == []
