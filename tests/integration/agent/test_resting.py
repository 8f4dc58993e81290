"""A node without GPUs: the agent rests there, at almost no cost, and starts when there is one."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, MODE_LABEL, MODEL_LABEL, ConditionType
from tests.conftest import HANGS_S
from tests.fakes import nvml
from tests.fakes.hardware import with_gpu
from tests.integration.agent.process import ProcessScene, process_scene
from tests.localcluster.machine import LOOPBACK, accepts, free_ports
from tests.localcluster.processes import children, command

MOST_MIB = 15


def status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def resting(here: ProcessScene) -> bool:
    assert here.process is not None
    return "gputile.node.idle" in command(here.process.pid)


async def answered(url: str) -> str:
    def ask() -> str:
        with urlopen(url, timeout=HANGS_S) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(ask)


@pytest.mark.anyio
@pytest.mark.requirement("M1", "U11")
async def test_it_rests_without_a_gpu_and_starts_with_one(short: Path) -> None:
    """Whatever labels come and go, an agent runs wherever there is a GPU. What the last one said goes."""

    (port,) = free_ports(1)
    url, options = f"http://{LOOPBACK}:{port}", (f"--health-port={port}",)
    async with process_scene(
        short, {MODE_LABEL: "cgpu"}, [15360], Configuration(), visible=False, options=options
    ) as here:
        await here.until(lambda: resting(here))
        assert here.process is not None
        pid = here.process.pid
        await here.until(lambda: accepts(port))
        assert await answered(f"{url}/readyz") == await answered(f"{url}/healthz")
        assert "gputile_agent_resting 1" in await answered(f"{url}/metrics")
        await here.until(lambda: children(pid) == [] or "node_status" not in command(children(pid)[0]))
        assert status(pid, "VmRSS") < MOST_MIB * 1024
        assert status(pid, "Threads") == 1
        before = wakeups(pid)
        await asyncio.sleep(3)
        assert wakeups(pid) - before <= 1, "it looks at the machine twice a minute, and does nothing else"
        assert here.cluster.node.metadata.labels == {MODE_LABEL: "cgpu"}
        assert here.cluster.node.status.conditions == ()
        assert list(here.host_paths.device_plugins.glob("gputile-*")) == []
        with_gpu(here.hardware)
        await here.until_offered(GPU_MEMORY, 15)
        assert not resting(here)
        assert here.process.pid == pid, "the very process that the kubelet started goes on"


@pytest.mark.anyio
@pytest.mark.requirement("U11")
async def test_a_node_whose_gpus_are_gone_is_one_without(short: Path) -> None:
    """What an agent said of it is removed, what others say stays."""

    async with process_scene(short, {MODE_LABEL: "cgpu"}, [15360], Configuration(), seed=3) as here:
        await here.until_offered(GPU_MEMORY, 15)
        await here.until(lambda: MODEL_LABEL in here.cluster.node.metadata.labels)
        assert INVENTORY_ANNOTATION in here.cluster.node.metadata.annotations
        assert here.cluster.condition(ConditionType.DRIVER_PROBLEM).status == "False"
        await here.stop_agent()
        here.hardware.rename(here.hardware.with_suffix(".gone"))
        await here.start_agent()
        await here.until(lambda: resting(here))
        await here.until(lambda: MODEL_LABEL not in here.cluster.node.metadata.labels)
        assert here.cluster.node.metadata.labels == {MODE_LABEL: "cgpu"}
        assert INVENTORY_ANNOTATION not in here.cluster.node.metadata.annotations
        assert here.cluster.node.status.conditions == ()


@pytest.mark.anyio
@pytest.mark.requirement("L1")
async def test_a_gpu_without_a_driver_is_told(short: Path) -> None:
    """It advertises nothing, and an event states the remedy."""

    async with process_scene(short, {}, [], Configuration(), visible=False) as here:
        await here.until(lambda: resting(here))
        await here.stop_agent()
        nvml.FakeMachine(short / "machine", [], init=nvml.DRIVER_NOT_LOADED).write()
        with_gpu(here.hardware)
        await here.start_agent()
        await here.until(lambda: here.cluster.condition(ConditionType.DRIVER_PROBLEM).status == "True")
        await here.until(lambda: any("driver" in message for _, _, message in here.cluster.events))
        assert not any(here.kubelet.manager.allocatable().values())


def wakeups(pid: int) -> int:
    return status(pid, "voluntary_ctxt_switches")
