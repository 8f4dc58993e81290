"""Files of the agent that a failing disk has damaged."""

from pathlib import Path

import msgspec
import pytest

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.request import Phase
from gputile.node.agent.device_table import LIMITS_FILE, Limits
from gputile.node.agent.files.allocation_files import BOOT_FILE, NodeFiles, StateError
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.mps import DaemonProcess
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.gateway.link import NodeLock
from tests.fakes.oddfiles import ODD

DAMAGED = [b"", b"\0" * 64, b'{"mode":"\xff\xfe"}', b'{"x":' + b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=["empty", "zeros", "no text", "nested"])
def test_damaged_files_of_an_allocation_are_none(tmp_path: Path, content: bytes) -> None:
    files = files_in(tmp_path)
    directory = files.prepare("one")
    (directory / LIMITS_FILE).write_bytes(content)
    (directory / BOOT_FILE).write_bytes(content)
    assert files.limits("one") is None
    assert files.started() == frozenset()


def test_what_was_answered_is_read_again(tmp_path: Path) -> None:
    files, answered = files_in(tmp_path), Limits("ns", "a", "u", "main", "cgpu", 1024, phase=Phase.INIT, since_ns=5)
    given = msgspec.structs.replace(answered, devices={GPU_MEMORY: ("GPU-0::1",)})
    files.write_answer("of-a-claim", answered)
    files.write_answer("u-main", given)
    assert files.records() == {"u-main": given}
    assert files.started() == frozenset()


def files_in(tmp_path: Path) -> NodeFiles:
    claim = NodeLock(tmp_path / "owner", "this agent")
    claim.acquire()
    return NodeFiles(tmp_path / "state", claim, UsageFiles(tmp_path / "usage"))


def test_nobody_else_on_the_node_reads_the_checkpoint(tmp_path: Path) -> None:
    """It names pods, and other users may pass through the directory."""
    files = files_in(tmp_path)
    (tmp_path / "state" / "checkpoint.json").touch(0o644)
    files.save(EffectiveMode(Mode.SHARE, 1024))
    assert (tmp_path / "state" / "checkpoint.json").stat().st_mode & 0o777 == 0o600


def test_the_mode_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    files, path = files_in(tmp_path), tmp_path / "state" / "checkpoint.json"
    mode = EffectiveMode(Mode.EXCLUSIVE, 1024, Sharing.TIME_SLICING, 4)
    assert files.load() is None
    files.save(mode)
    assert files.load() == mode
    for damaged in (path.read_bytes()[:-1], b'{"version":1,"effective_mode":null}', *DAMAGED):
        path.write_bytes(damaged)
        assert files.load() is None


@pytest.mark.parametrize("kind", ["pipe", "huge"])
@pytest.mark.parametrize("place", ["state", "state/allocations"])
def test_a_directory_that_cannot_be_used_is_an_error_that_says_so(tmp_path: Path, kind: str, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    ODD[kind](tmp_path / place)
    with pytest.raises(StateError, match=r"^the directory of the agent's state cannot be used: .*state"):
        files_in(tmp_path)


@pytest.mark.requirement("B1")
def test_a_directory_stays_as_long_as_the_pod_whose_limits_it_has(tmp_path: Path) -> None:
    """Whatever its name, and even if neither the agent's nor the kubelet's checkpoint tells of it any more."""
    store = files_in(tmp_path)
    for directory, uid in (("one", "1"), ("two", "2")):
        store.write_limits(directory, Limits("default", "a", uid, "main", "share", 1024, ()))
    (store.allocations / "three").mkdir()
    store.remove_except([], {"1"})
    assert [path.name for path in store.allocations.iterdir()] == ["one"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe 1", b"1", b"one two"])
def test_what_is_damaged_names_no_daemon(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "daemon.pid").write_bytes(content)
    assert DaemonProcess.left(tmp_path / "daemon.pid") is None
