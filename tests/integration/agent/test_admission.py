"""The right GPU, over the kubelet's own sockets."""

import asyncio
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import scene


@pytest.mark.anyio
async def test_every_mode_offers_its_resources_and_the_others_at_zero(short: Path) -> None:
    async def offered(mode: str, wanted: dict[str, int]) -> bool:
        async with scene(short / (mode or "none"), mode, sizes=(15360, 15360)) as here:
            await here.until(lambda: here.kubelet.manager.allocatable() == wanted)
            await asyncio.sleep(0.1)  # and it stays so
            return here.kubelet.manager.allocatable() == wanted

    def of(mem: int = 0, core: int = 0, gpus: int = 0, whole: int = 0) -> dict[str, int]:
        return {GPU_MEMORY: mem, GPU_CORE: core, TOPOLOGY_GPU: gpus, WHOLE_GPU: whole}

    assert await offered("", of(whole=2))
    assert await offered("default", of(whole=2))
    assert await offered("share", of(mem=30))
    assert await offered("cgpu", of(mem=30))
    assert await offered("core_mem", of(mem=30, core=200))
    assert await offered("topology", of(gpus=2))


@pytest.mark.anyio
async def test_a_pod_gets_the_booked_gpu(short: Path) -> None:
    async with scene(short) as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=10)))
        here.cluster.create(simple_pod("b", container(mem=10)))
        await here.until_running(2)
        assert here.gpus("default/a") == ("GPU-0",)
        assert here.gpus("default/b") == ("GPU-1",)
        environment = here.environment("default/a")
        assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "10"
        assert environment["ALIYUN_COM_GPU_MEM_POD"] == "10"
        assert environment["ALIYUN_COM_GPU_MEM_DEV"] == "15"
        assert environment["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        await here.until(lambda: here.disagreements() == [])
