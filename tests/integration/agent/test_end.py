"""An agent that is told to end does all that its end asks of it, and leaves nobody behind."""

import os
import signal
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.well_known import GPU_MEMORY, MODE_LABEL
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod
from tests.integration.agent.process import process_scene
from tests.localcluster.processtree import children, command

GPU_MIB = 15360


@pytest.mark.anyio
@pytest.mark.requirement("M5")
async def test_an_arbiter_that_hangs_ends_with_its_agent(short: Path) -> None:
    """It holds the lock that the next agent's arbiter waits for."""

    def arbiters(agent: int) -> list[int]:
        return [pid for pid in children(agent) if "gputile.node.arbiter" in command(pid)]

    configuration = Configuration(trust=Trust(by="cluster"))
    async with process_scene(short, {MODE_LABEL: "cgpu"}, [GPU_MIB], configuration) as here:
        await here.until_offered(GPU_MEMORY, 15)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        agent = here.pids()[1]
        await here.until(lambda: bool(arbiters(agent)))
        (arbiter,) = arbiters(agent)
        os.kill(arbiter, signal.SIGSTOP)
        assert here.process is not None
        here.process.terminate()
        assert await here.process.wait() == 0
        await here.until(lambda: not command(arbiter))
