"""NVIDIA's own MPS control daemon, as the agent runs it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gputile.node.agent.allocation import LIMIT_ENV, PIPE_ENV
from gputile.node.agent.mps import PROGRAM, MpsDaemons
from tests.gpu.neighbour import RealGpu
from tests.localcluster.nosuid import with_pipes

LIMIT_MIB = 2048


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_a_client_of_the_daemon_has_its_limit(gpu: RealGpu) -> None:
    assert shutil.which(PROGRAM), f"{PROGRAM} is not installed"
    state = Path(tempfile.mkdtemp(prefix="g-"))  # short, as the names of sockets have to be
    daemons = MpsDaemons(with_pipes(state) / "mps")
    uuids = (gpu.uuids[0],)
    try:
        daemons.want([uuids])
        await daemons.until_up(uuids)
        assert daemons.problem is None
        assert taken_by_a_client(daemons.pipes(uuids)) in range(LIMIT_MIB // 2, LIMIT_MIB + 1)
    finally:
        await daemons.stop()
        shutil.rmtree(state)


def taken_by_a_client(pipes: Path) -> int:
    """Return how many MiB a client gets that asks for twice its limit."""
    command = [sys.executable, "-m", "gputile.node.isolation.probe", "memory", "cuMemAlloc", str(2 * LIMIT_MIB)]
    environment = {**os.environ, PIPE_ENV: str(pipes), LIMIT_ENV: f"0={LIMIT_MIB}M"}
    done = subprocess.run(
        command, env=environment, input="\n\n", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
