"""The agent's side: an arbiter runs while there are containers, a new one when it dies, one at a time in an upgrade."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from gputile.node.agent import arbiter_process
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.time_shares import TimeShares
from gputile.node.arbiter.accounts import Share
from gputile.node.arbiter.messages import (
    SIZE,
    SOCKET,
    Assignment,
    Message,
    MessageKind,
    Spent,
    decode,
    uuid_fields,
)
from gputile.node.gateway.link import NodeLock
from tests.conftest import HANGS_S
from tests.fakes.apiserver import until

GPU = "GPU-00000000-0000-5117-0000-000000000001"
USED_NS = 40_000_000


def shares_of(store: NodeFiles, *names: str) -> TimeShares:
    containers = {str(store.allocations / name): {GPU: Share()} for name in names}
    return TimeShares(Assignment(containers), dict.fromkeys(names, b"gputile-share 1\nend\n"), {})


def claimed(directory: Path, token: str) -> NodeLock:
    """Return a claim that has been made."""
    claim = NodeLock(directory / "owner", token)
    claim.acquire()
    return claim


def answers(path: Path) -> bool:
    """Return whether an arbiter greets here."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(0.5)
        try:
            peer.connect(str(path))
            peer.sendall(Message(MessageKind.HELLO, a=1, b=1).encode())
            return decode(peer.recv(SIZE, socket.MSG_WAITALL)).kind is MessageKind.WELCOME
        except (OSError, ValueError):
            return False


@pytest.mark.anyio
async def test_served_again_when_the_arbiter_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, wanted = NodeFiles(tmp_path, claimed(tmp_path, "a"), UsageFiles(tmp_path / "usage")), ["one"]
    store.prepare("one")
    monkeypatch.setattr(arbiter_process, "STOP_WITHIN_S", 60.0)
    turns = ArbiterProcess(store, lambda _: shares_of(store, *wanted))
    path = store.allocations / "one" / SOCKET
    share = store.allocations / "one" / "share"
    for _ in range(2):  # a start has it written, whatever was written before
        turns.starting("one", {GPU})
        assert share.read_bytes().startswith(b"gputile-share 1\n")
        share.unlink()
    turns.refresh()
    await until(lambda: answers(path))
    first = turns.process
    assert first is not None
    first.kill()
    await until(lambda: turns.process not in (None, first) and answers(path))
    store.prepare("two")
    wanted.append("two")
    turns.refresh()
    await until(lambda: answers(store.allocations / "two" / SOCKET))
    wanted.clear()
    turns.refresh()
    await until(lambda: turns.process is None and not path.exists())
    await turns.stop()


@pytest.mark.anyio
@pytest.mark.requirement("G4")
async def test_what_was_used_is_told_by_each_arbiter_from_its_start(tmp_path: Path) -> None:
    """Who had how much of a GPU can be seen; the counters of a new arbiter start at 0."""
    store = NodeFiles(tmp_path, claimed(tmp_path, "a"), UsageFiles(tmp_path / "usage"))
    store.prepare("one")
    turns = ArbiterProcess(store, lambda _: shares_of(store, "one"))
    path = store.allocations / "one" / SOCKET
    turns.refresh()
    await until(lambda: answers(path))
    await asyncio.to_thread(use, path)

    def is_counted() -> bool:
        return turns.spent.get(("one", GPU), Spent()).used >= USED_NS

    await until(is_counted)
    first = turns.process
    assert first is not None
    first.kill()
    await until(lambda: turns.process not in (None, first) and answers(path))
    turns.spent = {}
    await asyncio.to_thread(use, path)
    await until(is_counted)
    await turns.stop()


def use(path: Path) -> None:
    """Take a turn for 50 ms, and give it back."""
    a, b = uuid_fields(GPU)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(HANGS_S)
        peer.connect(str(path))
        peer.sendall(Message(MessageKind.HELLO, a=1, b=1).encode())
        assert decode(peer.recv(SIZE, socket.MSG_WAITALL)).kind is MessageKind.WELCOME
        peer.sendall(Message(MessageKind.GPU, gpu=0, a=a, b=b).encode() + Message(MessageKind.WANT).encode())
        turn = decode(peer.recv(SIZE, socket.MSG_WAITALL))
        assert turn.kind is MessageKind.TURN
        time.sleep(0.05)
        peer.sendall(Message(MessageKind.DONE, turn=turn.turn, a=USED_NS).encode())
        time.sleep(0.2)
