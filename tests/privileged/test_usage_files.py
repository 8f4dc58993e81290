"""A container that does its worst to the one file that it can write takes little, and nothing from its neighbours."""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.node.agent.files.node_mounts import PLACE_BYTES, mount_usage
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.isolation.library import USAGE
from gputile.node.native_layouts import USAGE_BYTES, USAGE_LOCK_SLOTS
from tests.fakes.oddfiles import ODD

MNT_DETACH = 2  # linux/mount.h
MOST_BYTES = 16 << 20  # that a test takes of its machine
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[UsageFiles]:
    """What the chart's init container mounts, with room for two containers."""
    path = tmp_path / "run"
    mount_usage(path, 1)
    yield UsageFiles(path / USAGE)
    for mounted in (*path.glob("containers/*"), path):
        libc.umount2(str(mounted).encode(), MNT_DETACH)


def make(node: UsageFiles, *names: str) -> list[int]:
    """Make the files of containers; return descriptors, as containers have them by their mounts."""
    for name in names:
        node.make(node.path(name))
    return [os.open(node.path(name), os.O_RDWR | os.O_CLOEXEC) for name in names]


def grow(file: int) -> int:
    """Make a file as long as it can be made; return how long that is."""
    os.lseek(file, 0, os.SEEK_END)
    with contextlib.suppress(OSError):
        while os.fstat(file).st_size < MOST_BYTES:
            os.write(file, bytes(1 << 16))
    return os.fstat(file).st_size


def add_attributes(file: int) -> int:
    """Give a file as many extended attributes as it can have; return how many bytes they have."""
    added = 0
    with contextlib.suppress(OSError):  # before Linux 6.6 tmpfs has none
        while added < MOST_BYTES:
            os.setxattr(file, f"user.{added:0250}", bytes(1 << 10))
            added += 250 + (1 << 10)
    return added


@pytest.mark.requirement("M4", "G5")
def test_the_file_of_a_container_has_an_end(node: UsageFiles) -> None:
    """Root of a container can also take it away from the agent, which has no capability."""
    (hostile,) = make(node, "hostile")
    assert grow(hostile) <= PLACE_BYTES
    assert add_attributes(hostile) < 8 << 10
    os.fchown(hostile, 1000, 1000)
    os.fchmod(hostile, 0o600)
    (neighbour,) = make(node, "neighbour")
    assert os.fstat(neighbour).st_size == USAGE_BYTES
    os.pwrite(neighbour, b"\1" * USAGE_BYTES, 0)
    for each in (hostile, neighbour):
        os.close(each)


@pytest.mark.requirement("M4", "G5")
def test_what_a_container_keeps_open_is_its_own_loss(node: UsageFiles) -> None:
    """Another container of its pod may hold the file of one that starts again."""
    held = make(node, "hostile")
    grow(held[0])
    with pytest.raises(OSError, match="No space left"):
        node.make(node.path("hostile"))
    held += make(node, "neighbour")
    node.make(node.path("neighbour"))
    os.close(held[0])
    node.make(node.path("hostile"))
    assert node.path("hostile").stat().st_size == USAGE_BYTES
    os.close(held[1])


@pytest.mark.requirement("M4", "G5")
def test_a_place_is_free_when_nobody_has_its_file_any_more(node: UsageFiles) -> None:
    """The file of a container that is gone may be mounted yet, or open."""
    held = make(node, "one", "two")
    with pytest.raises(OSError, match=r"all 2 places .*\(agent\.usageMiB\)"):
        node.make(node.path("three"))
    node.remove_except(["two"])
    assert node.names() == ["two"]
    assert len([path for place in node.directory.parent.glob("containers/*") for path in place.iterdir()]) == 1
    with pytest.raises(OSError, match="all 2 places"):
        node.make(node.path("three"))
    os.close(held[0])
    node.make(node.path("three"))
    assert sorted(node.names()) == ["three", "two"]
    assert node.path("three").stat().st_size == USAGE_BYTES
    os.close(held[1])


@pytest.mark.requirement("M4", "G5")
def test_an_agent_that_ended_in_between_leaves_no_place_taken(node: UsageFiles) -> None:
    for place in node.directory.parent.glob("containers/*"):
        (place / f".{USAGE}.1").touch()
    for file in make(node, "one", "two"):
        os.close(file)


@pytest.mark.requirement("M4", "G5")
def test_mounting_again_changes_nothing_and_adds_what_is_asked_for(node: UsageFiles) -> None:
    """As each new version of the agent does, over the containers that run."""
    held = make(node, "one")
    os.pwrite(held[0], b"\1", 0)
    mount_usage(node.directory.parent, 2)
    assert len(list(node.directory.parent.glob("containers/*"))) == 4
    held += make(node, "two", "three", "four")
    assert os.pread(held[0], 1, 0) == node.path("one").read_bytes()[:1] == b"\1"
    mount_usage(node.directory.parent, 1)
    for file in held:
        os.close(file)


@pytest.mark.requirement("M4", "G5")
def test_nobody_else_runs_or_sees_what_is_there(node: UsageFiles) -> None:
    (file,) = make(node, "hostile")
    path = node.file("hostile")
    assert os.statvfs(path).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC) == (
        os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
    )
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "test", "-e", str(path)]
    assert subprocess.run(nobody, check=False).returncode == 1
    assert node.problem() is None
    os.close(file)


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_held_by_nobody(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "one")
    assert not UsageFiles(tmp_path).is_held("one")


@pytest.mark.requirement("B1", "M4")
@pytest.mark.parametrize("held", [True, False])
def test_a_file_made_unreadable_is_held_as_long_as_its_container_uses_it(tmp_path: Path, *, held: bool) -> None:
    """Its root may; the agent in its pod has no capability to read the file all the same."""
    path = tmp_path / "one"
    path.write_bytes(bytes(USAGE_BYTES))
    with path.open("r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS + 3 if held else 0, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        path.chmod(0)
        code = f"from {UsageFiles.__module__} import *; print(UsageFiles(Path({str(tmp_path)!r})).is_held('one'))"
        capable = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
        said = subprocess.run([*capable, sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == [str(held)]
