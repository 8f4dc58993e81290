"""What an agent has left does not stay as a zombie, and one that cannot be started is no secret."""

import argparse
import asyncio
import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputile.node.gateway.__main__ import keep_agent, serve

ORPHANS = """
import os, time
from pathlib import Path
from gputile.support.process_supervision import reap_orphans

def zombies():
    return [pid for pid in map(int, Path("/proc/self/task/%d/children" % os.getpid()).read_text().split())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]

reap_orphans()
gone = [os.spawnlp(os.P_NOWAIT, "true", "true") for _ in range(3)]
stays = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
while sorted(zombies()) != sorted(gone):
    time.sleep(0.01)
reap_orphans()
assert zombies() == []
os.kill(stays, 9)
"""


def test_those_that_have_ended_are_reaped_and_the_others_left_alone() -> None:
    subprocess.run([sys.executable, "-c", ORPHANS], check=True, timeout=30)


@pytest.mark.anyio
async def test_a_gateway_that_cannot_start_its_agent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no more processes are allowed, say: status 0 would pass for an end that was asked for."""

    async def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    arguments = argparse.Namespace(
        device_plugin_dir=tmp_path, pod_resources_socket=tmp_path / "s", claim_file=tmp_path / "c", command=["agent"]
    )
    assert await serve(arguments) == 1
    assert "the agent cannot be run" in caplog.text


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_an_agent_that_cannot_be_started_for_a_moment_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet's calls wait for the next one, and the gateway that keeps them stays."""

    class Serving:
        in_charge = True

        async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

    start, tries = asyncio.create_subprocess_exec, 0

    async def refused_once(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused_once)
    assert await keep_agent([sys.executable, "-c", ""], Serving()) == 0  # type: ignore[arg-type]
    assert tries == 2
