"""What else can go wrong between agent, kubelet and API server, and what comes of it."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import GPU_MEMORY, HANDOVER_ANNOTATION, MODE_LABEL, WHOLE_GPU, ConditionType
from gputile.core.devices.allocation import decode_allocation, encode_allocation
from gputile.node.agent import agent
from gputile.node.nvml.gpu_health import Health, HealthState
from gputile.node.nvml.gpu_monitor import Observation
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import scene

ALLOCATION = "gputile.io/allocation"


@pytest.mark.anyio
async def test_the_kubelet_wins_where_it_does_not_follow(short: Path) -> None:
    async with scene(short, "share", (15360,) * 8, seed=3) as here:
        await here.until_offered(GPU_MEMORY, 120)
        here.kubelet.manager.honour = False
        for i in range(12):
            here.cluster.create(simple_pod(f"p{i}", container(mem=1)))
        await here.until(lambda: here.kubelet.idle)
        await here.until_running(12)
        await here.until(lambda: here.disagreements() == [])
        corrected = [message for _, reason, message in here.cluster.events if reason == "GpuBookingCorrected"]
        assert corrected
        registry = here.agent.metrics.registry
        assert registry.get_sample_value("gputile_agent_allocations_corrected_total") == len(corrected)
        assert here.failed == {}


@pytest.mark.anyio
async def test_an_annotation_that_names_no_gpu_is_replaced(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        text = here.pod("default/a").metadata.annotations[ALLOCATION]
        here.cluster.delete("default/a")
        await here.until(lambda: here.kubelet.idle)
        for name, annotation in (("gone", text.replace("GPU-0", "GPU-77")), ("junk", "{")):
            pod = simple_pod(name, container(mem=4), annotations={ALLOCATION: annotation})
            here.cluster.create(pod, node=NODE)
        await here.until_running(2)
        await here.until(lambda: here.disagreements() == [])
        assert encode_allocation(decode_allocation(here.pod("default/gone").metadata.annotations[ALLOCATION]))


@pytest.mark.anyio
async def test_a_hand_over_that_nobody_ends_is_ended(short: Path) -> None:
    """A successor that dies once it has closed the node leaves it to the agent that still serves it."""
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        now = time.time()
        for until in (f"{now + 3:.0f}", "nonsense", "-1"):
            await here.cluster.patch_node({"metadata": {"annotations": {HANDOVER_ANNOTATION: until}}})
            assert HANDOVER_ANNOTATION in here.cluster.node.metadata.annotations
            await here.until(lambda: HANDOVER_ANNOTATION not in here.cluster.node.metadata.annotations)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)


@pytest.mark.anyio
@pytest.mark.requirement("B6")
async def test_a_disk_that_is_full_keeps_no_news_from_the_kubelet(short: Path) -> None:
    """An unhealthy GPU leaves all the same. A mode that is not written down yet waits."""
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        in_the_way = here.host_paths.state / f".checkpoint.json.{os.getpid()}"
        in_the_way.mkdir()
        well = here.monitor.seen
        unhealthy = Health({"GPU-0": HealthState(healthy=False, reason="XID 79")})
        here.monitor.seen, here.monitor.changed = Observation(well.machine, unhealthy), True
        await here.until_offered(GPU_MEMORY, 45)
        here.cluster.relabel({MODE_LABEL: "default"})
        await here.until(lambda: here.cluster.condition(ConditionType.MODE_PENDING).status == "True")
        assert here.kubelet.manager.allocatable().get(GPU_MEMORY) == 45
        in_the_way.rmdir()
        await here.until_offered(WHOLE_GPU, 3)


@pytest.mark.anyio
async def test_a_driver_that_hangs_takes_its_gpus_from_new_pods(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls do not return, and nothing can end them; an agent that starts meanwhile says so too."""
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        well = here.monitor.seen
        monkeypatch.setattr(agent, "PROBE_HANGS_S", 0.2)
        with here.monitor.hangs:
            await here.until_offered(GPU_MEMORY, 0)
            await here.stop_agent()
            here.monitor.seen = well
            await here.start_agent()
            await here.until(lambda: here.agent.not_ready() is None)
            assert "not answered for 0.2 s" in here.cluster.condition(ConditionType.DRIVER_PROBLEM).message
            await here.until_offered(GPU_MEMORY, 0)

        def offered_again() -> bool:
            here.monitor.seen, here.monitor.changed = well, True  # a busy machine is taken for a driver that hangs
            return here.kubelet.manager.allocatable().get(GPU_MEMORY) == 60

        await here.until(offered_again)


@pytest.mark.anyio
async def test_a_round_that_takes_for_ever_is_given_up(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway ends an agent that asks it nothing for 90 s, however well it is."""
    monkeypatch.setattr(agent, "RECONCILE_EVERY_S", 0.1)
    monkeypatch.setattr(agent, "ROUND_WITHIN_S", 0.2)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        tries = 0

        async def never_answers(*_: object) -> Pod:
            nonlocal tries
            tries += 1
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(here.cluster, "annotate", never_answers)  # the API server
        here.cluster.create(simple_pod("hand", container(mem=4)), node=NODE)
        await here.until(lambda: tries > 2)
