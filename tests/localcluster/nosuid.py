"""A directory on a file system that is mounted ``nosuid``, as /run is on a node: for what containers write."""

import atexit
import functools
import os
import subprocess
import tempfile
from pathlib import Path

from gputile.node.agent.files.node_mounts import mount_places, mount_small
from tests.localcluster.binaries import skip_or_fail
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.machine import Scratch

PREFIX = "gputile-nosuid-"
MIB = 512  # of several hundred containers at a time


def nosuid_directory(places: int = 0) -> Path:
    """Return a new directory on such a file system; it goes when the tests end.

    It is mounted, ``MIB`` in size; where that takes root one of the machine's own is used, and without one the test is
    skipped. With ``places`` that many containers have a file system of their own below it.
    """
    directory = Path(tempfile.mkdtemp(dir=_place()))
    mount_places(directory, places)
    return directory


def with_pipes(state: Path) -> Path:
    """Make an agent's state directory, in which the pipes of MPS are on such a file system; return it."""
    state.mkdir(exist_ok=True, parents=True)
    if not (state / "mps").is_symlink():
        (state / "mps").symlink_to(nosuid_directory())
    return state


@functools.cache
def _place() -> Path:
    scratch = Scratch(PREFIX, _unmount)
    atexit.register(_remove, scratch, os.getpid())
    try:
        mount_small(scratch.path / "usage", MIB)
    except PermissionError:
        return _there()
    return scratch.path / "usage"


def _there() -> Path:
    for path in (Path("/dev/shm"), Path(f"/run/user/{os.getuid()}")):
        if path.is_dir() and os.access(path, os.W_OK) and os.statvfs(path).f_flag & os.ST_NOSUID:
            found = tempfile.TemporaryDirectory(prefix=PREFIX, dir=path)
            atexit.register(found.cleanup)
            return Path(found.name)
    return skip_or_fail(ComponentMissing("no file system that is mounted nosuid can be written here"))


def _remove(scratch: Scratch, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked from the tests
        scratch.remove()


def _unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory / "usage")], capture_output=True, check=False)
