"""A mount's flags are known even where a container runtime hides how the host has mounted it."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.node.agent.files import node_mounts
from gputile.node.agent.files.node_mounts import (
    BIND,
    LIBRARY_DIRECTORY,
    NOEXEC,
    REMOUNT,
    is_nosuid,
    is_ours,
    mount,
    mount_library,
    mount_usage,
    mounts,
)
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.isolation.library import LibraryNotLoadable, install, must_be_loadable, place_in

MNT_DETACH, SHARED = 2, 1 << 20  # linux/mount.h
CONTENT = b"\x7fELF" + bytes(4096)
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A directory of the host on a file system that is mounted ``noexec``."""
    path = tmp_path / "host"
    path.mkdir()
    mount("tmpfs", path, "tmpfs", NOEXEC)
    mount("none", path, "none", SHARED)
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


@pytest.fixture
def volume(host: Path, tmp_path: Path) -> Iterator[Path]:
    """A pod's volume of that directory."""
    path = tmp_path / "volume"
    path.mkdir()
    mount(host, path, "none", BIND)
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


def can_be_loaded(library: Path) -> bool:
    """Try to do what the dynamic loader does."""
    with library.open("rb") as file:
        try:
            mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        except PermissionError:
            return False
    return True


@pytest.mark.requirement("M4", "M5")
def test_a_flag_that_a_container_runtime_hides_is_gone_on_the_host_too(host: Path, volume: Path) -> None:
    """runc of 1.2 and later mounts a volume anew with no flags; the agent and the host then disagree."""
    mount("none", volume, "none", BIND | REMOUNT)
    mount_library(volume)
    seen, there = (place_in(each / LIBRARY_DIRECTORY, CONTENT) for each in (volume, host))
    install(seen, CONTENT)
    must_be_loadable(seen)
    assert can_be_loaded(there.library)
    assert os.statvfs(host).f_flag & os.ST_NOEXEC, "the file system of the host stays as it was"


@pytest.mark.requirement("M4", "M5")
def test_a_flag_that_a_container_runtime_keeps_is_seen(host: Path, volume: Path) -> None:
    mount_library(volume)
    seen, there = (place_in(each / LIBRARY_DIRECTORY, CONTENT) for each in (volume, host))
    install(seen, CONTENT)
    with pytest.raises(LibraryNotLoadable, match="is mounted noexec"):
        must_be_loadable(seen)
    assert not can_be_loaded(there.library)


@pytest.mark.requirement("M4", "M5")
def test_the_next_version_of_the_agent_mounts_nothing_more(host: Path, volume: Path) -> None:
    (volume / LIBRARY_DIRECTORY).mkdir()
    (volume / LIBRARY_DIRECTORY / "kept").touch()
    for _ in range(2):
        mount_library(volume)
    assert [each.place for each in mounts()].count(str(volume / LIBRARY_DIRECTORY)) == 1
    assert (host / LIBRARY_DIRECTORY / "kept").exists()


def test_nobody_follows_a_link_among_the_pipes_of_mps(host: Path, volume: Path) -> None:
    for _ in range(2):
        arguments = map(str, (1, volume / "usage", volume, volume / "mps"))
        subprocess.run([sys.executable, "-m", node_mounts.__name__, *arguments], check=True)
    assert [each.place for each in mounts()].count(str(host / "mps")) == 1
    for path, followed in (("usage/link", True), ("mps/link", False)):
        (volume / path).symlink_to(__file__)
        assert [(each / path).is_file() for each in (host, volume)] == [followed] * 2


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A directory on which something may be mounted."""
    path = tmp_path / "in-the-container"
    path.mkdir()
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


@pytest.fixture
def usage_on_host(tmp_path: Path) -> Iterator[Path]:
    """What the chart's init container mounts on the host."""
    path = tmp_path / "on-the-host"
    mount_usage(path, 1)
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


@pytest.mark.requirement("M4", "G5")
def test_a_container_runtime_that_drops_the_flag_hides_nothing(usage_on_host: Path, target: Path) -> None:
    """runc mounts a hostPath volume of a pod by a bind mount, and then anew with no flags."""
    mount(usage_on_host, target, "none", BIND)
    mount("none", target, "none", BIND | REMOUNT)
    assert not os.statvfs(target).f_flag & os.ST_NOSUID
    assert is_nosuid(target)
    assert is_ours(target)
    assert UsageFiles(target / "usage").problem() is None


@pytest.mark.requirement("M4", "G5")
def test_another_file_system_without_the_flag_is_none(usage_on_host: Path, target: Path) -> None:
    mount("tmpfs", target, "tmpfs", 0)
    assert not is_nosuid(target)
    assert not is_ours(target)
    assert "is not mounted nosuid" in (UsageFiles(target / "usage").problem() or "")
    assert is_nosuid(usage_on_host)
