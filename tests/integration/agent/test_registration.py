"""Registration with a kubelet that does not behave."""

import asyncio
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY
from gputile.node.gateway import registration
from gputile.node.gateway.plugin import Plugin
from gputile.node.gateway.registration import KUBELET_SOCKET, Registrar
from tests.fakes.kubelet import Kubelet


async def nobody(method: str, resource: str, body: bytes) -> bytes:
    """There is no agent that would answer."""
    raise AssertionError(f"{method} of {resource}")


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_a_kubelet_that_never_answers_holds_nothing_up_and_its_successor_is_served(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin is there meanwhile, and the kubelet is asked again."""
    monkeypatch.setattr(registration, "ANSWER_WITHIN_S", 0.2)
    monkeypatch.setattr(registration, "LOOK_EVERY_S", 0.05)
    callers: list[asyncio.StreamWriter] = []
    asked_thrice = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer)
        if len(callers) == 3:
            asked_thrice.set()

    directory = short / "dp"
    directory.mkdir()
    silent = await asyncio.start_unix_server(mute, directory / KUBELET_SOCKET)
    registered = asyncio.Event()
    registrar = Registrar(directory, nobody, changed=lambda: registered.set() if registrar.registered else None)
    await registrar.advertise((GPU_MEMORY,), {GPU_MEMORY: b""})
    task = asyncio.create_task(registrar.run())
    try:
        async with asyncio.timeout(60):
            await asked_thrice.wait()
        assert list(directory.glob("gputile-gpu-mem-*.sock"))
        assert not registered.is_set()
        silent.close()
        for writer in callers:
            writer.close()
        (directory / KUBELET_SOCKET).unlink(missing_ok=True)
        kubelet = Kubelet(directory, short / "pr" / "kubelet.sock", lambda uid, phase, reason: None, 1)
        monkeypatch.setattr(registration, "ANSWER_WITHIN_S", 10.0)  # this one answers, however busy the machine
        await kubelet.start({})
        async with asyncio.timeout(60):
            await registered.wait()
        await kubelet.kill()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def sockets(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))


@pytest.mark.anyio
async def test_a_plugin_that_is_cancelled_while_it_starts_can_be_stopped(short: Path) -> None:
    """gRPC would complain of a server that does not know that it has started, and leave its socket."""
    plugin = Plugin(GPU_MEMORY, short, b"", nobody)
    starting = asyncio.create_task(plugin.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    await plugin.stop()
    assert sockets(short) == []
