"""The agent's own process: killed with SIGKILL in the middle of a burst, measured, and told to end."""

import asyncio
import fcntl
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.resource_claims import RESOURCE_SLICES_PATH
from gputile.api.well_known import CLAIMS_LABEL, DRIVER, GPU_MEMORY, MODE_LABEL, ConditionType
from gputile.node.agent.arbiter_process import LOCK
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.process import ProcessScene, process_scene
from tests.integration.agent.test_bursts import EVERYBODY, shared
from tests.localcluster.processes import children, command

GPUS = [81920] * 8


def answers(here: ProcessScene) -> int:
    return sum(map(len, here.kubelet.manager.seconds.values()))


def answered_since(here: ProcessScene, served: int) -> bool:
    return answers(here) > served or here.kubelet.idle


@pytest.mark.anyio
@pytest.mark.requirement("G1", "B1")
async def test_no_pod_fails_while_agents_die(short: Path) -> None:
    """The gateway stays, so the kubelet's calls wait for the next agent, and no admission fails."""
    choice = random.Random(12)
    async with process_scene(short, {MODE_LABEL: "cgpu"}, GPUS, EVERYBODY, 12) as here:
        await here.until_offered(GPU_MEMORY, 640)
        killed: set[int] = set()
        served = 0
        for i in range(200):
            here.cluster.create(shared(choice, f"p{i}", equal=i % 2 == 0))
            if i % 25 == 12:
                await asyncio.sleep(choice.uniform(0.0, 0.3))
                # One that was just killed may still be seen for a while.
                await here.until(lambda: len(pids := here.pids()) == 2 and pids[1] not in killed)
                if i % 50 == 12:  # calls wait for 25 s in all: every other agent lives to answer one
                    await here.until(partial(answered_since, here, served))
                while not (dead := here.kill_agent()):  # no event tells of a new one  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                killed.update(dead)
                served = answers(here)
        await here.until_running(200 - len(here.cluster.waiting))
        assert here.failed == {}
        await here.until(lambda: here.disagreements() == [])
        assert here.overbooked() == []
        assert len(killed) == 8
        assert here.process is not None
        assert here.process.returncode is None


GPU_MIB = 15360


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError) as error:
        return isinstance(error, BlockingIOError)
    return False


@pytest.mark.anyio
@pytest.mark.requirement("M5")
@pytest.mark.parametrize("killed", [False, True])
async def test_an_arbiter_that_hangs_ends_with_its_agent(short: Path, killed: bool) -> None:
    """It holds the lock that the next agent's arbiter waits for; the gateway kills agents that end too slowly, too."""

    def arbiters() -> list[int]:
        return [pid for agent in here.pids()[1:] for pid in children(agent) if "gputile.node.arbiter" in command(pid)]

    configuration = Configuration(trust=Trust(by="cluster"))
    async with process_scene(short, {MODE_LABEL: "cgpu"}, [GPU_MIB], configuration) as here:
        await here.until_offered(GPU_MEMORY, 15)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        await here.until(lambda: is_locked(here.host_paths.state / LOCK))
        (arbiter,) = arbiters()
        os.kill(arbiter, signal.SIGSTOP)
        if killed:
            here.kill_agent()
            await here.until(lambda: arbiters() not in ([], [arbiter]))
        else:
            assert here.process is not None
            here.process.terminate()
            assert await here.process.wait() == 0
        await here.until(lambda: not command(arbiter))


@pytest.mark.anyio
@pytest.mark.requirement("B8")
async def test_an_api_server_that_knows_no_claims_has_the_label_refused(short: Path) -> None:
    """As before Kubernetes 1.34; the node serves pods again once the label is removed."""
    (short / "plugins_registry").mkdir()
    options = (f"--cdi-dir={short / 'cdi'}",)
    async with process_scene(short, {MODE_LABEL: "cgpu"}, GPUS, EVERYBODY, options=options) as here:
        await here.until_offered(GPU_MEMORY, 640)
        for path in (RESOURCE_SLICES_PATH, f"{RESOURCE_SLICES_PATH}/{NODE}-{DRIVER}"):
            here.api.refused[path] = (404, "NotFound")
        here.cluster.relabel({MODE_LABEL: "cgpu", CLAIMS_LABEL: "true"})
        await here.until(lambda: here.cluster.condition(ConditionType.CLAIMS_REFUSED).status == "True")
        assert "1.34" in here.cluster.condition(ConditionType.CLAIMS_REFUSED).message
        here.cluster.relabel({MODE_LABEL: "cgpu"})
        await here.until_offered(GPU_MEMORY, 640)
