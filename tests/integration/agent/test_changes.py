"""Modes, units and ways of sharing change while the node is in use."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import PodStatus
from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    REPLICAS_LABEL,
    SHARING_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.core.devices.allocation import Allocation, decode_allocation
from gputile.node.agent.decisions.advertising.mode_and_unit import MODE_PENDING, UNIT_REFUSED
from gputile.node.agent.decisions.advertising.node_resources import MIG_PROBLEM
from gputile.node.agent.decisions.advertising.other_plugin import OTHER_PLUGIN
from gputile.node.nvml.probe import MigInstance
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import Scene, scene

RESOURCES = {"default": (WHOLE_GPU, 4), "topology": (TOPOLOGY_GPU, 4), "share": (GPU_MEMORY, 60)}
RESOURCES |= {"cgpu": (GPU_MEMORY, 60), "core_mem": (GPU_CORE, 400), "mps": (GPU_MEMORY, 60)}


def allocation(here: Scene, key: str) -> Allocation:
    return decode_allocation(here.pod(key).metadata.annotations["gputile.io/allocation"])


async def offered(here: Scene, mode: str) -> None:
    resource, amount = RESOURCES[mode]
    mib = 60 if mode in ("share", "cgpu", "core_mem", "mps") else 0
    await here.until(
        lambda: (
            here.kubelet.manager.allocatable().get(resource) == amount
            and here.kubelet.manager.allocatable()[GPU_MEMORY] == mib
        ),
        what=f"{mode}: {here.kubelet.manager.allocatable()}",
    )


def through_all_pairs(modes: Sequence[str]) -> list[str]:
    """Return a way through the modes on which each is followed once by each, itself too."""
    way: list[str] = []
    for number, mode in enumerate(modes):
        way += [mode, *(each for later in modes[number + 1 :] for each in (mode, later))]
    return [*way, modes[0]]


@pytest.mark.anyio
async def test_every_mode_switches_to_every_other(short: Path) -> None:
    async with scene(short, "") as here:
        await offered(here, "default")
        way = through_all_pairs(list(RESOURCES))
        assert len(set(pairwise(way))) == len(way) - 1 == len(RESOURCES) ** 2
        for mode in way:
            here.cluster.relabel({MODE_LABEL: mode})
            await offered(here, mode)
        here.cluster.relabel({})
        await offered(here, "default")


@pytest.mark.anyio
async def test_a_mode_change_waits_for_the_gpu_pods(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        here.cluster.relabel({MODE_LABEL: "topology"})
        await here.until(lambda: here.cluster.condition(MODE_PENDING).status == "True")
        condition = here.cluster.condition(MODE_PENDING)
        assert condition.reason == "PodsOnNode"
        assert "default/a" in condition.message
        assert any(reason == "PodsOnNode" and about == "Node n" for about, reason, _ in here.cluster.events)
        await here.stop_agent()  # what is in force outlives the agent
        await here.start_agent()
        await here.until(here.agent.parts.links.kubelet.registered.is_set)
        await here.until_offered(GPU_MEMORY, 60)
        await asyncio.sleep(0.3)
        assert here.kubelet.manager.allocatable()[GPU_MEMORY] == 60
        here.kubelet.finish(here.pod("default/a").metadata.uid)
        await offered(here, "topology")
        await here.until(lambda: here.cluster.condition(MODE_PENDING).status == "False")


@pytest.mark.anyio
@pytest.mark.requirement("M12")
async def test_a_pod_that_is_bound_while_the_mode_changes_is_served(short: Path) -> None:
    """What was decided before the scheduler saw the node closed arrives at what it was decided for."""
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.lag = 0.2  # the watch tells of the pod only after the node was closed for long enough
        here.cluster.relabel({MODE_LABEL: "topology"})
        await here.until(lambda: here.cluster.condition(MODE_PENDING).reason == "Closing")
        assert here.cluster.engine.state(NODE) is not None
        here.cluster.create(simple_pod("late", container(mem=4)), node=NODE)
        await here.until_running(1)
        await here.until(lambda: here.cluster.condition(MODE_PENDING).reason == "PodsOnNode")
        assert not here.failed
        here.kubelet.finish(here.pod("default/late").metadata.uid)
        await offered(here, "topology")


@pytest.mark.anyio
async def test_a_closing_node_takes_no_new_pods_and_opens_again_when_the_wish_is_withdrawn(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.agent.parts.steps.mode.closed_for = 3600.0
        here.cluster.relabel({MODE_LABEL: "topology"})
        await here.until(lambda: here.cluster.condition(MODE_PENDING).reason == "Closing")
        here.cluster.create(simple_pod("a", container(mem=4)))
        await asyncio.sleep(0.3)
        assert not here.pod("default/a").spec.node_name
        here.cluster.relabel({MODE_LABEL: "share"})
        await here.until_running(1)


@pytest.mark.anyio
async def test_an_unknown_mode_changes_nothing_and_names_the_valid_ones(short: Path) -> None:
    async with scene(short, "share") as here:
        await offered(here, "share")
        here.cluster.relabel({MODE_LABEL: "shared"})
        await here.until(lambda: here.cluster.condition(MODE_PENDING).status == "True")
        message = here.cluster.condition(MODE_PENDING).message
        assert all(mode in message for mode in RESOURCES)
        assert here.kubelet.manager.allocatable()[GPU_MEMORY] == 60


@pytest.mark.anyio
@pytest.mark.parametrize(("first", "second"), [("1GiB", "128MiB"), ("128MiB", "1GiB"), ("1GiB", "1000MiB")])
async def test_the_unit_changes_under_running_pods(short: Path, first: str, second: str) -> None:
    before, after = Configuration(gpu_memory_unit=first), Configuration(gpu_memory_unit=second)
    async with scene(short, "share", (15360, 16280), configuration=before) as here:
        total = sum(mib // before.unit_mib for mib in (15360, 16280))
        await here.until_offered(GPU_MEMORY, total)
        for i in range(6):
            here.cluster.create(simple_pod(f"old{i}", container(mem=4096 // before.unit_mib)))
        await here.until_running(6)
        held = {
            i: decode_allocation(here.pod(f"default/old{i}").metadata.annotations["gputile.io/allocation"])
            for i in range(6)
        }
        here.cluster.configuration = after
        here.cluster.ledger.configuration = after
        here.agent.news.configure(after)
        state = here.agent.parts.allocation_state
        await here.until(lambda: state.node_config.effective_mode.unit_mib == after.unit_mib)
        await here.until(lambda: here.kubelet.manager.allocatable()[GPU_MEMORY] != total)

        def running() -> int:
            return sum(pod.status.phase == "Running" for pod in here.cluster.pods.values())

        def free_ids() -> dict[int, int]:
            manager = here.kubelet.manager
            ids = manager.healthy[GPU_MEMORY] - manager.allocated.get(GPU_MEMORY, set())
            return {index: sum(i.startswith(f"g{index}-") for i in ids) for index in (0, 1)}

        def in_step() -> bool:
            used = {0: 0, 1: 0}
            for pod in here.cluster.pods.values():
                if pod.status.phase == "Running":
                    for share in decode_allocation(pod.metadata.annotations["gputile.io/allocation"]).gpus:
                        used[share.index] += share.mib
            return all(
                count == max(0, size // after.unit_mib - -(-used[index] // after.unit_mib))
                for (index, count), size in zip(free_ids().items(), (15360, 16280), strict=True)
            )

        await here.until(in_step, what=f"{free_ids()}")
        for i in range(20):
            here.cluster.create(simple_pod(f"new{i}", container(mem=max(1, 700 // after.unit_mib))))
        await here.until(lambda: len(here.cluster.waiting) < 20, what="the scheduler goes by the former unit")
        await here.until(lambda: here.kubelet.idle)
        await here.until(lambda: running() == 26 - len(here.cluster.waiting))
        assert here.failed == {}
        await here.until(lambda: here.disagreements() == [])
        assert here.overbooked() == []
        assert held == {i: allocation(here, f"default/old{i}") for i in range(6)}
        for i in range(6):
            here.cluster.delete(f"default/old{i}")
        assert here.cluster.asked()[GPU_MEMORY] <= here.kubelet.manager.allocatable()[GPU_MEMORY]
        await here.until_running(20)
        await here.until(in_step, what=f"{free_ids()}")
        assert here.failed == {}


@pytest.mark.anyio
async def test_a_unit_that_is_too_small_is_refused_with_the_smallest_valid(short: Path) -> None:
    small = Configuration(gpu_memory_unit="64MiB")
    async with scene(short, "share", (1024 * 1024,) * 16) as here:
        await here.until_offered(GPU_MEMORY, 16 * 1024)
        here.agent.news.configure(small)
        await here.until(lambda: here.cluster.condition(UNIT_REFUSED).status == "True")
        assert "the smallest valid unit on this node is " in here.cluster.condition(UNIT_REFUSED).message
        assert here.kubelet.manager.allocatable()[GPU_MEMORY] == 16 * 1024


@pytest.mark.anyio
@pytest.mark.requirement("G3", "G5")
async def test_time_slicing_books_replicas_and_keeps_strangers_apart(short: Path) -> None:
    """The scheduler books the GPU, so it knows whose pods are on it; a stranger is never sent there."""
    labels = {SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "4"}
    async with scene(short, "", (15360, 15360), labels=labels) as here:
        await here.until_offered(WHOLE_GPU, 8)
        await here.until(lambda: INVENTORY_ANNOTATION in here.cluster.node.metadata.annotations)
        for i in range(4):
            here.cluster.create(simple_pod(f"p{i}", container(asks={WHOLE_GPU: 1})))
        await here.until_running(4)
        gpus = sorted(here.gpus(f"default/p{i}") for i in range(4))
        assert gpus == [("GPU-0",)] * 2 + [("GPU-1",)] * 2
        here.cluster.create(simple_pod("stranger", container(asks={WHOLE_GPU: 1}), namespace="other"))
        here.cluster.create(simple_pod("many", container(asks={WHOLE_GPU: 3})))
        here.cluster.create(simple_pod("both", container(asks={WHOLE_GPU: 2})))
        await here.until_running(5)
        assert here.gpus("default/both") == ("GPU-0", "GPU-1")
        assert [pod.key for pod in here.cluster.waiting] == ["other/stranger", "default/many"]
        for i in range(4):
            here.cluster.delete(f"default/p{i}")
        here.cluster.delete("default/both")
        await here.until(lambda: here.pod("other/stranger").status.phase == "Running")
        assert [pod.key for pod in here.cluster.waiting] == ["default/many"], "it needs three different GPUs"
        assert here.failed == {}
        await here.until(lambda: here.disagreements() == [])


@pytest.mark.anyio
@pytest.mark.requirement("G5")
async def test_a_stranger_that_is_bound_by_hand_waits_and_is_not_failed(short: Path) -> None:
    """Its controller would make the next pod at once, and that one would fail too, without end."""
    labels = {SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "2"}
    async with scene(short, "", (15360,), labels=labels) as here:
        await here.until_offered(WHOLE_GPU, 2)
        here.cluster.create(simple_pod("first", container(asks={WHOLE_GPU: 1})))
        await here.until_running(1)
        here.cluster.create(simple_pod("stranger", container(asks={WHOLE_GPU: 1}), namespace="other"), node=NODE)
        await here.until(lambda: len(here.agent.parts.allocation_state.device_table) == 2)
        await asyncio.sleep(1.0)
        assert here.pod("other/stranger").status.phase in ("", "Pending")
        assert here.failed == {}
        here.cluster.delete("default/first")
        await here.until(lambda: here.pod("other/stranger").status.phase == "Running")
        assert here.gpus("other/stranger") == ("GPU-0",)


@pytest.mark.anyio
async def test_mig_instances_are_offered_by_profile(short: Path) -> None:
    small = [MigInstance(f"MIG-{i}", "1g.5gb", 4864, i, 0) for i in (7, 8)]
    mig = {1: [*small, MigInstance("MIG-big", "2g.10gb", 9856, 1, 0)]}
    async with scene(short, "", (40960, 40960), labels={SHARING_LABEL: "mig"}, mig=mig) as here:
        await here.until_offered("nvidia.com/mig-1g.5gb", 2)
        await here.until_offered("nvidia.com/mig-2g.10gb", 1)
        await here.until_offered(WHOLE_GPU, 1)
        here.cluster.create(simple_pod("m", container(asks={"nvidia.com/mig-1g.5gb": 1})), node=NODE)
        here.cluster.create(simple_pod("w", container(asks={WHOLE_GPU: 1})))
        await here.until_running(2)
        assert here.environment("default/m")["NVIDIA_VISIBLE_DEVICES"] in ("MIG-7", "MIG-8")
        assert here.gpus("default/w") == ("GPU-0",)


@pytest.mark.anyio
async def test_mig_without_instances_is_a_condition(short: Path) -> None:
    async with scene(short, "", labels={SHARING_LABEL: "mig"}) as here:
        await here.until(lambda: here.cluster.condition(MIG_PROBLEM).status == "True")
        await here.until_offered(WHOLE_GPU, 4)


@pytest.mark.anyio
async def test_a_node_that_another_plugin_serves_is_left_alone(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        plugin = simple_pod("nvdp", container("c"), labels={"name": "nvidia-device-plugin-ds"})
        plugin = here.cluster.create(plugin, node=NODE)
        here.cluster.status(plugin.metadata.uid, PodStatus(phase="Running").phase, "")
        await here.until_offered(GPU_MEMORY, 0)
        await here.until(lambda: here.cluster.condition(OTHER_PLUGIN).status == "True")
        assert INVENTORY_ANNOTATION not in here.cluster.node.metadata.annotations
        await here.until(lambda: not any(here.kubelet.manager.allocatable().values()))
        here.cluster.delete("default/nvdp")
        await here.until_offered(GPU_MEMORY, 60)
