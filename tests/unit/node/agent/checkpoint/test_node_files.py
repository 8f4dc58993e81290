"""Files of the agent that a failing disk has damaged."""

from pathlib import Path

import pytest

from gputile.node.agent.allocate.answer import LIMITS_FILE
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.checkpoint.node_files import BOOT_FILE, NodeFiles
from gputile.node.gateway.node_lock import NodeLock

DAMAGED = [b"", b"\0" * 64, b'{"mode":"\xff\xfe"}', b'{"x":' + b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=["empty", "zeros", "no text", "nested"])
def test_damaged_files_of_an_allocation_are_none(tmp_path: Path, content: bytes) -> None:
    claim = NodeLock(tmp_path / "owner", "this agent")
    claim.take()
    files = NodeFiles(tmp_path / "state", claim, UsageFiles(tmp_path / "usage"))
    directory = files.prepare("one")
    (directory / LIMITS_FILE).write_bytes(content)
    (directory / BOOT_FILE).write_bytes(content)
    assert files.limits("one") is None
    assert files.started() == frozenset()


def test_a_damaged_claim_is_another_one(tmp_path: Path) -> None:
    claim = NodeLock(tmp_path / "owner", "this agent")
    claim.take()
    assert claim.mine
    (tmp_path / "owner").write_bytes(b"\xff\xfe")
    assert not claim.mine
