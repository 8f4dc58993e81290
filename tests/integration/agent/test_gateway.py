"""The gateway's life with agents that do not behave."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY
from gputile.node.gateway import gateway, relay
from gputile.node.gateway.node_lock import NodeLock
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import cancelled, scene
from tests.localcluster.processtree import children

pytestmark = pytest.mark.requirement("G1")

SILENT_AGENT = (
    "import os, socket, time; s = socket.socket(fileno=int(os.environ['GPUTILE_GATEWAY_FD'])); time.sleep(60)"
)


def run_gateway(directory: Path, agent: str) -> "subprocess.Popen[str]":
    """Start a gateway in front of an agent that is a line of Python."""
    where = [f"--device-plugin-dir={directory}", f"--pod-resources-socket={directory / 'none'}"]
    options = [*where, f"--claim-file={directory / 'owner'}", "--log-format=text"]
    line = [sys.executable, "-m", "gputile.node.gateway", *options, "--", sys.executable, "-c", agent]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("agent", "status"), [("raise SystemExit(7)", 7), ("pass", 0)])
def test_an_agent_that_cannot_start_says_so_with_the_gateways_exit_status(short: Path, agent: str, status: int) -> None:
    """What another start does not mend is left to the kubelet, which shows it."""
    with run_gateway(short, agent) as gateway:
        gateway.communicate(timeout=60)
        assert gateway.returncode == status


def test_a_gateway_that_is_told_to_end_takes_its_agent_along(short: Path) -> None:
    with run_gateway(short, SILENT_AGENT) as gateway:
        deadline = time.monotonic() + 60
        while not (found := children(gateway.pid)):
            assert time.monotonic() < deadline, "no agent was started"
            time.sleep(0.02)
        gateway.terminate()
        gateway.communicate(timeout=60)
        assert gateway.returncode == 0
        assert not Path(f"/proc/{found[0]}").exists()


@pytest.mark.anyio
async def test_what_cannot_be_done_for_an_agent_ends_it(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait for ever."""

    def refuse(claim: NodeLock) -> None:
        raise OSError("the disk is read-only")

    monkeypatch.setattr(NodeLock, "take", refuse)

    async with scene(short, "share") as here:
        async with asyncio.timeout(60):
            await here.hung_up()


@pytest.mark.anyio
async def test_nothing_is_offered_where_no_agent_comes_back_until_one_does(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (relay, gateway):
        monkeypatch.setattr(module, "AWAY_FOR_S", 0.3)
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 0.05)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        await here.lose_agent()
        await here.until_offered(GPU_MEMORY, 0)
        await here.start_agent()
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        await here.until(lambda: here.disagreements() == [])


@pytest.mark.anyio
async def test_an_agent_that_hangs_is_ended(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "QUIET_FOR_S", 0.2)

    async with scene(short, "share") as here:
        async with asyncio.timeout(60):
            await here.hung_up()


@pytest.mark.anyio
async def test_the_older_gateway_starts_anew_when_the_younger_one_is_gone(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody would serve the node."""
    monkeypatch.setattr(gateway, "ABANDONED_AFTER_S", 0.3)
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 0.05)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        older = here.running()
        await here.start_younger_agent()
        await here.until(here.agent.parts.links.kubelet.registered.is_set)
        await here.stop_agent()
        with pytest.raises(gateway.AbandonedError):
            async with asyncio.timeout(20):
                await older[0]
        await cancelled(older)
