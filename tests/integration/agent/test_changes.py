"""Modes, units and ways of sharing change while the node is in use."""

import asyncio
from pathlib import Path

import pytest

from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    MODE_LABEL,
    REPLICAS_LABEL,
    SHARING_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    ConditionType,
)
from gputile.core.devices.allocation import Allocation, decode_allocation
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


@pytest.mark.anyio
@pytest.mark.requirement("M12")
async def test_a_pod_that_is_bound_while_the_mode_changes_is_served(short: Path) -> None:
    """What was decided before the scheduler saw the node closed arrives at what it was decided for."""
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.lag = 0.2  # the watch tells of the pod only after the node was closed for long enough
        here.cluster.relabel({MODE_LABEL: "topology"})
        await here.until(lambda: here.cluster.condition(ConditionType.MODE_PENDING).reason == "Closing")
        assert here.cluster.engine.ledger.state(NODE) is not None
        here.cluster.create(simple_pod("late", container(mem=4)), node=NODE)
        await here.until_running(1)
        await here.until(lambda: here.cluster.condition(ConditionType.MODE_PENDING).reason == "PodsOnNode")
        assert not here.failed
        here.kubelet.finish(here.pod("default/late").metadata.uid)
        await offered(here, "topology")


@pytest.mark.anyio
async def test_a_closing_node_takes_no_new_pods_and_opens_again_when_the_wish_is_withdrawn(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.agent.advertiser.closed_for = 3600.0
        here.cluster.relabel({MODE_LABEL: "topology"})
        await here.until(lambda: here.cluster.condition(ConditionType.MODE_PENDING).reason == "Closing")
        here.cluster.create(simple_pod("a", container(mem=4)))
        await asyncio.sleep(0.3)
        assert not here.pod("default/a").spec.node_name
        here.cluster.relabel({MODE_LABEL: "share"})
        await here.until_running(1)


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
        await here.until(lambda: len(here.agent.allocation_state.device_table) == 2)
        await asyncio.sleep(1.0)
        assert here.pod("other/stranger").status.phase in ("", "Pending")
        assert here.failed == {}
        here.cluster.delete("default/first")
        await here.until(lambda: here.pod("other/stranger").status.phase == "Running")
        assert here.gpus("other/stranger") == ("GPU-0",)
