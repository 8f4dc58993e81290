"""The library's place on a node, and the mounts of a container."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gputile.api.well_known import Mode
from gputile.core.devices.allocation import GpuShare
from gputile.node.agent.container_start import IsolationMounts, NotYet
from gputile.node.agent.device_table import Limits
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.node_mounts import is_ours, mount_usage
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.gateway.link import NodeLock
from gputile.node.isolation.library import NAME, install, library_path, place_in
from gputile.node.native_layouts import USAGE_BYTES
from tests.localcluster.nosuid import nosuid_directory
from tests.unit.node.agent.test_node_metrics import lock_slot


@dataclass
class Node:
    """A node whose agent has ``enforcement``."""

    state: Path
    usage: UsageFiles
    enforcement: IsolationMounts

    def answer(self, mode: Mode = Mode.CGPU) -> dict[str, str]:
        """Return what a container is told to mount, by its own paths."""
        mounts = {m.container_path: m.host_path for m in self.enforcement.mounts(mode, "a")}
        return {"/etc/gputile/allocation": str(self.state / "allocations" / "a"), **mounts}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    usage = UsageFiles(nosuid_directory())
    return Node(tmp_path, usage, IsolationMounts(tmp_path, usage))


@pytest.mark.requirement("M4")
def test_what_was_answered_while_nothing_could_be_written_is_there_when_it_starts(node: Node) -> None:
    """The answer names the files that will be there, so a disk that was full for a moment costs no pod."""
    (node.state / "library").write_text("no directory can be made here")
    answer = node.answer()
    with pytest.raises(NotYet, match="library"):
        node.enforcement.prepare(Mode.CGPU, "a", answer)
    (node.state / "library").unlink()
    assert node.enforcement.prepare(Mode.CGPU, "a", answer) == node.usage.path("a")
    assert all(Path(answer[path]).is_file() for path in (f"/etc/gputile/{NAME}", "/etc/ld.so.preload"))


LIBRARY = f"/etc/gputile/{NAME}"


@pytest.mark.requirement("M4", "M5")
@pytest.mark.parametrize(
    ("path", "host_path"),
    [
        (LIBRARY, None),
        (LIBRARY, "/lib/other.so"),
        ("/etc/ld.so.preload", None),
        ("/etc/gputile/allocation", "/elsewhere/allocations/a2"),
        ("/etc/gputile/usage", "/host/usage/a2"),
    ],
)
def test_an_answer_that_does_not_isolate_starts_nothing_for_good(node: Node, path: str, host_path: str | None) -> None:
    """The kubelet keeps the answer, whatever the node can do by now."""
    answer = {name: host for name, host in node.answer().items() if name != path}
    wrong = answer if host_path is None else answer | {path: host_path}
    for mode in (Mode.CGPU, Mode.CORE_MEM):
        for given in (wrong, {}):
            with pytest.raises(NotYet, match="delete the pod, so that it is admitted again"):
                node.enforcement.prepare(mode, "a", given)


def damaged(path: Path) -> None:
    path.write_bytes(b"something else")


def gone(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    """What containerd makes where the source of a mount is missing."""
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("harm", [damaged, gone, a_directory, a_link])
def test_files_that_an_answer_names_are_what_they_should_be(
    node: Node, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """Of this version and of one that is no longer installed; that something is there is not enough."""
    old = place_in(tmp_path / "library", b"an older library")
    install(old, b"an older library")
    of_old = node.answer() | {
        f"/etc/gputile/{NAME}": str(old.library),
        "/etc/ld.so.preload": str(old.preload),
    }
    node.enforcement.prepare(Mode.CGPU, "a", of_old)
    assert old.library.read_bytes() == b"an older library"
    for answer in (node.answer(), of_old):
        node.enforcement.prepare(Mode.CGPU, "a", answer)
        library, preload = (Path(answer[path]) for path in (f"/etc/gputile/{NAME}", "/etc/ld.so.preload"))
        for path in (library, preload):
            harm(path)
            node.enforcement.prepare(Mode.CGPU, "a", answer)
            assert stat.S_ISREG(path.lstat().st_mode)
        assert library.read_bytes() == library_path().read_bytes()
        assert preload.read_text() == f"/etc/gputile/{NAME}\n"


@pytest.mark.requirement("M4")
def test_a_place_that_allows_setuid_takes_nothing(tmp_path: Path, node: Node) -> None:
    """What a container may write must not run as root for others of the node."""
    allows = next((path for path in (tmp_path, Path.cwd()) if not os.statvfs(path).f_flag & os.ST_NOSUID), None)
    if allows is None:
        pytest.skip("every file system here is mounted nosuid")
    inside = allows / f"gputile-usage-{os.getpid()}"
    enforcement = IsolationMounts(tmp_path, UsageFiles(inside))
    try:
        assert enforcement.prepare(Mode.SHARE, "a", {}) is None
        answer = node.answer() | {"/etc/gputile/usage": str(inside / "a")}
        with pytest.raises(NotYet, match="not mounted nosuid"):
            enforcement.prepare(Mode.CGPU, "a", answer)
    finally:
        inside.rmdir()


@pytest.mark.requirement("M4", "M5")
def test_a_place_from_which_nothing_is_loaded_isolates_nobody(node: Node) -> None:
    """A container that mounts the library from there can run without it: its loader only says so."""
    state = nosuid_directory()
    if not os.statvfs(state).f_flag & os.ST_NOEXEC:
        pytest.skip("no file system that is mounted noexec can be written here")
    there = Node(state, node.usage, IsolationMounts(state, node.usage))
    for mode in (Mode.CGPU, Mode.CORE_MEM):
        with pytest.raises(NotYet) as refused:
            there.enforcement.prepare(mode, "a", there.answer(mode))
        assert f"the file system of {state}/library/" in str(refused.value)
        assert "is mounted noexec" in str(refused.value)
        assert "--state-dir" in str(refused.value)
        node.enforcement.prepare(mode, "a", node.answer(mode))


@pytest.mark.requirement("M4", "M5")
def test_the_files_of_an_allocation(tmp_path: Path, node: Node) -> None:
    """Limits that the library reads, and a place to count that any user of the container can write."""
    claim = NodeLock(tmp_path / "owner", "this agent")
    claim.acquire()
    store = NodeFiles(tmp_path, claim, node.usage)
    limits = Limits("ns", "pod", "uid", "main", "core_mem", 128, (GpuShare("GPU-1", 0, 4096, 20),))
    path, usage = store.prepare("uid-main"), node.usage.path("uid-main")
    store.write_limits("uid-main", limits, usage)
    usage.write_bytes(b"\xff" * USAGE_BYTES)
    store.write_limits("uid-main", limits, usage)
    lines = (path / "limits").read_text().splitlines()
    assert lines[0] == "gputile 1"
    assert "card GPU-1 4096 20" in lines
    assert lines[-1] == "end"
    assert usage.read_bytes() == bytes(USAGE_BYTES)  # a container that is restarted begins anew
    held = lock_slot(usage)
    usage.write_bytes(b"\1")
    store.write_limits("uid-main", limits, usage)
    assert usage.read_bytes() == b"\1"  # another container with the same directory runs
    os.close(held)
    store.write_limits("uid-main", limits, usage)
    assert usage.stat().st_blocks * 512 >= USAGE_BYTES  # a full file system does not kill who writes into it
    assert usage.stat().st_mode & 0o777 == 0o666
    assert (path / "limits").stat().st_mode & 0o777 == 0o644
    store.remove_except(["another"])
    assert not usage.exists()
    assert not path.exists()


@pytest.mark.requirement("M4", "M5")
def test_other_users_of_the_node_reach_nothing_of_containers(tmp_path: Path, node: Node) -> None:
    """Neither their files nor their sockets; directories that an older agent left open are closed."""
    state = tmp_path / "state"
    (state / "allocations" / "uid-main").mkdir(parents=True, mode=0o755)
    for path in (state, state / "allocations", node.usage.directory):
        path.chmod(0o755)
    store = NodeFiles(state, NodeLock(tmp_path / "owner", "this agent"), node.usage)
    assert node.usage.problem() is None
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (state, store.allocations, node.usage.directory)}
    assert modes == {state: 0o711, store.allocations: 0o700, node.usage.directory: 0o700}
    mounted = store.prepare("uid-main")  # seen in the container, by any user of it
    assert stat.S_IMODE(mounted.stat().st_mode) == 0o755


@pytest.mark.requirement("M4")
def test_what_a_container_makes_longer_is_cut_back(node: Node) -> None:
    """Before the next file is made, and in each round; other files stay as they are."""
    one, two = node.usage.path("one"), node.usage.path("two")
    node.usage.make(one)
    node.usage.make(two)
    two.write_bytes(b"\1" * USAGE_BYTES)
    os.truncate(one, USAGE_BYTES * 20)
    node.usage.make(node.usage.path("three"))
    assert [path.stat().st_size for path in (one, two)] == [USAGE_BYTES] * 2
    assert two.read_bytes() == b"\1" * USAGE_BYTES


@pytest.mark.requirement("M4")
def test_no_file_system_is_put_over_what_others_have(tmp_path: Path) -> None:
    """A mistake in the chart's agent.usageDir, /run say, hides nothing of the node."""
    (tmp_path / "utmp").touch()
    with pytest.raises(OSError, match="also contains utmp, which is not gputile's"):
        mount_usage(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [tmp_path / "utmp"]
    assert not is_ours(tmp_path)
