"""What a container left runs for nobody: known even where a container runtime hides how the host has mounted it."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.node.agent.files.mounts import is_nosuid, is_ours
from gputile.node.agent.files.node_mounts import mount_usage
from gputile.node.agent.files.usage_files import UsageFiles

MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2  # linux/mount.h
libc = ctypes.CDLL(None, use_errno=True)
pytestmark = pytest.mark.requirement("M4", "G5")


def mount(source: Path | str, target: Path, kind: str = "none", flags: int = 0) -> None:
    """Mount something, or skip the test where that takes rights that it has not."""
    if libc.mount(str(source).encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), None):
        pytest.skip(f"this machine mounts nothing for us: {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A directory on which something may be mounted."""
    path = tmp_path / "in-the-container"
    path.mkdir()
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


@pytest.fixture
def usage(tmp_path: Path) -> Iterator[Path]:
    """What the chart's init container mounts on the host."""
    path = tmp_path / "on-the-host"
    try:
        mount_usage(path, 1)
    except PermissionError as error:
        pytest.skip(f"this machine mounts nothing for us: {error}")
    yield path
    libc.umount2(str(path).encode(), MNT_DETACH)


def test_a_container_runtime_that_drops_the_flag_hides_nothing(usage: Path, target: Path) -> None:
    """runc mounts a hostPath volume of a pod by a bind mount, and then anew with no flags."""
    mount(usage, target, flags=MS_BIND)
    mount("none", target, flags=MS_BIND | MS_REMOUNT)
    assert not os.statvfs(target).f_flag & os.ST_NOSUID
    assert is_nosuid(target)
    assert is_ours(target)
    assert UsageFiles(target / "usage").problem() is None


def test_another_file_system_without_the_flag_is_none(usage: Path, target: Path) -> None:
    mount("tmpfs", target, "tmpfs")
    assert not is_nosuid(target)
    assert not is_ours(target)
    assert "is not mounted nosuid" in (UsageFiles(target / "usage").problem() or "")
    assert is_nosuid(usage)
