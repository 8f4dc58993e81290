"""The arbiter listens wherever a container's directory is, and leaves no socket behind."""

import asyncio
import contextlib
import shutil
import socket
from pathlib import Path

import pytest

from gputile.node.arbiter.accounts import Share
from gputile.node.arbiter.messages import (
    SIZE,
    SOCKET,
    Assignment,
    Message,
    MessageKind,
    decode,
)
from gputile.node.arbiter.server import Arbiter
from tests.conftest import HANGS_S

GPU = "GPU-00000000-0000-5117-0000-000000000001"


def sockets() -> set[str]:
    """Return the sockets that this process has."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that the list was read from
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}


@pytest.mark.anyio
@pytest.mark.requirement("M5")
async def test_a_directory_that_is_made_anew_has_a_socket_again(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    arbiter, before, loop = Arbiter(), sockets(), asyncio.get_running_loop()
    arbiter.assign(Assignment({str(directory): {GPU: Share()}}))
    shutil.rmtree(directory)
    arbiter.listen()
    assert sockets() <= before
    directory.mkdir()
    (directory / SOCKET).touch()
    arbiter.listen()
    assert len(sockets() - before) == 1
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        await loop.sock_connect(peer, str(directory / SOCKET))
        await loop.sock_sendall(peer, Message(MessageKind.HELLO, a=1, b=1).encode())
        async with asyncio.timeout(HANGS_S):
            assert decode(await loop.sock_recv(peer, SIZE)).kind is MessageKind.WELCOME
    arbiter.assign(Assignment())
    await asyncio.sleep(0.05)
    assert sockets() <= before
    assert not (directory / SOCKET).exists()
    arbiter.close()
