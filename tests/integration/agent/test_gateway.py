"""The gateway's life with agents that do not behave, and registration with a kubelet that does not."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY
from gputile.node.gateway import gateway, plugins, registration
from gputile.node.gateway.link import NodeLock
from gputile.node.gateway.plugins import Plugin
from gputile.node.gateway.registration import KUBELET_SOCKET, Registrar
from tests.conftest import HANGS_S
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.kubelet import Kubelet
from tests.integration.agent.scene import cancelled, scene
from tests.localcluster.processes import children

SILENT_AGENT = (
    "import os, socket, time; s = socket.socket(fileno=int(os.environ['GPUTILE_GATEWAY_FD'])); time.sleep(60)"
)


def run_gateway(directory: Path, agent: str) -> "subprocess.Popen[str]":
    """Start a gateway in front of an agent that is a line of Python."""
    where = [f"--device-plugin-dir={directory}", f"--pod-resources-socket={directory / 'none'}"]
    options = [*where, f"--claim-file={directory / 'owner'}", "--log-format=text"]
    line = [sys.executable, "-m", "gputile.node.gateway", *options, "--", sys.executable, "-c", agent]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True)


@pytest.mark.requirement("G1")
@pytest.mark.parametrize(("agent", "status"), [("raise SystemExit(7)", 7), ("pass", 0)])
def test_an_agent_that_cannot_start_says_so_with_the_gateways_exit_status(short: Path, agent: str, status: int) -> None:
    """What another start does not mend is left to the kubelet, which shows it."""
    with run_gateway(short, agent) as gateway:
        gateway.communicate(timeout=HANGS_S)
        assert gateway.returncode == status


@pytest.mark.requirement("G1")
def test_a_gateway_that_is_told_to_end_takes_its_agent_along(short: Path) -> None:
    with run_gateway(short, SILENT_AGENT) as gateway:
        deadline = time.monotonic() + HANGS_S
        while not (found := children(gateway.pid)):
            assert time.monotonic() < deadline, "no agent was started"
            time.sleep(0.02)
        gateway.terminate()
        gateway.communicate(timeout=HANGS_S)
        assert gateway.returncode == 0
        assert not Path(f"/proc/{found[0]}").exists()


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_what_cannot_be_done_for_an_agent_ends_it(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait for ever."""

    def refuse(claim: NodeLock) -> None:
        raise OSError("the disk is read-only")

    monkeypatch.setattr(NodeLock, "acquire", refuse)

    async with scene(short, "share") as here:
        async with asyncio.timeout(HANGS_S):
            await here.hung_up()


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_nothing_is_offered_where_no_agent_comes_back_until_one_does(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "AGENT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(registration, "RECONCILE_EVERY_S", 0.05)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        await here.lose_agent()
        await here.until_offered(GPU_MEMORY, 0)
        await here.start_agent()
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        await here.until(lambda: here.disagreements() == [])


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_an_agent_that_hangs_is_ended(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "SILENCE_TIMEOUT_S", 0.2)

    async with scene(short, "share") as here:
        async with asyncio.timeout(HANGS_S):
            await here.hung_up()


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_the_older_gateway_starts_anew_when_the_younger_one_is_gone(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody would serve the node."""
    monkeypatch.setattr(gateway, "ABANDONED_AFTER_S", 0.3)
    monkeypatch.setattr(registration, "RECONCILE_EVERY_S", 0.05)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        older = here.running()
        await here.start_younger_agent()
        await here.until(here.agent.kubelet.registered.is_set)
        await here.stop_agent()
        with pytest.raises(gateway.AbandonedError):
            async with asyncio.timeout(HANGS_S):
                await older[0]
        await cancelled(older)


async def nobody(method: str, resource: str, body: bytes) -> bytes:
    """There is no agent that would answer."""
    raise AssertionError(f"{method} of {resource}")


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_a_kubelet_that_never_answers_holds_nothing_up_and_its_successor_is_served(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin is there meanwhile, and the kubelet is asked again."""
    monkeypatch.setattr(plugins, "REGISTER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(registration, "RECONCILE_EVERY_S", 0.05)
    callers: list[asyncio.StreamWriter] = []
    asked_thrice = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer)
        if len(callers) == 3:
            asked_thrice.set()

    directory = short / "dp"
    directory.mkdir()
    silent = await asyncio.start_unix_server(mute, directory / KUBELET_SOCKET)
    registrar = Registrar(directory, nobody)
    registrar.advertise((GPU_MEMORY,), {GPU_MEMORY: b""})

    async def keep_registered() -> None:
        while not registrar.registered:
            await registrar.reconcile()
            await asyncio.sleep(registrar.pause)

    registered = asyncio.create_task(keep_registered())
    try:
        async with asyncio.timeout(HANGS_S):
            await asked_thrice.wait()
        assert list(directory.glob("gputile-gpu-mem-*.sock"))
        assert not registered.done()
        silent.close()
        for writer in callers:
            writer.close()
        (directory / KUBELET_SOCKET).unlink(missing_ok=True)
        kubelet = Kubelet(directory, short / "pr" / "kubelet.sock", lambda uid, phase, reason: None, 1)
        monkeypatch.setattr(plugins, "REGISTER_TIMEOUT_S", 10.0)  # this one answers, however busy the machine
        await kubelet.start({})
        async with asyncio.timeout(HANGS_S):
            await registered
        await kubelet.kill()
    finally:
        registered.cancel()
        await asyncio.gather(registered, return_exceptions=True)
        await registrar.stop()


def sockets(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))


@pytest.mark.anyio
async def test_a_plugin_that_is_cancelled_while_it_starts_can_be_stopped(short: Path) -> None:
    """gRPC would complain of a server that does not know that it has started, and leave its socket."""
    plugin = Plugin(GPU_MEMORY, nobody)
    starting = asyncio.create_task(plugin.start(short))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    await plugin.stop()
    assert sockets(short) == []
