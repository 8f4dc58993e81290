"""Finds and installs the library of native/, and encodes the limits that the library enforces.

The agent mounts the file /etc/ld.so.preload read-only into each container. For every program, the
dynamic loader reads this file and loads the library that the file names. The variable LD_PRELOAD
would not be enough, because `env -i` removes it. To remove the mount, a process needs
CAP_SYS_ADMIN. The loader of Nix reads /etc/ld-nix.so.preload instead.

The limits are lines of text, because the library has no JSON parser (native/accounting/limits.h).
The agent writes the limits into a file that is mounted read-only. It also creates the usage file,
with a fixed size and full of zeros. All processes of a container map this file into their memory
(native/accounting/shared_usage.c).
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node import native_layouts
from gputile.support.files import UnusableFileError, read_whole, write_whole

NAME: Final = "libgputile-cuda.so"
CONTAINER_LIBRARY: Final = f"/etc/gputile/{NAME}"
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"  # ld.so(8)
# nixpkgs, glibc's dont-use-system-ld-so-preload.patch
CONTAINER_NIX_PRELOAD: Final = "/etc/ld-nix.so.preload"
CONTAINER_USAGE: Final = "/etc/gputile/usage"  # native/hooks/init.c
_PRELOAD = "ld.so.preload"
_MOST_BYTES = 64 * MIB


class LibraryMissing(RuntimeError):
    """This installation of gputile has no library."""


class LibraryNotLoadable(RuntimeError):
    """The dynamic loader of a container would ignore the library."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The path of the library on a node, and of the file ld.so.preload that names the library."""

    library: Path
    preload: Path


def library_path() -> Path:
    """Return the library's path. Raises LibraryMissing if this installation has none."""
    path = Path(__file__).with_name(NAME)
    if not path.exists():
        raise LibraryMissing(
            f"this gputile has no {NAME}, so it cannot isolate GPUs: install it from a wheel for "
            "this machine's processor, or with a C compiler"
        )
    return path


def place_in(directory: Path, content: bytes) -> Installed:
    """Return the paths at which a library with this content is installed under ``directory``.

    Each version has its own directory. So a new version does not affect containers that are
    running.
    """
    return place_named(directory, hashlib.sha256(content).hexdigest()[:16])


def place_named(directory: Path, version: str) -> Installed:
    return Installed(directory / version / NAME, directory / version / _PRELOAD)


def install(installed: Installed, content: bytes) -> None:
    """Install the library and its ld.so.preload, unless they are installed already.

    An installed library is kept if its hash matches the name of its directory. A missing or damaged
    library is replaced by ``content``. Raises OSError if a file cannot be read or written.
    """
    directory = installed.library.parent
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
    found = _content(installed.library)
    if found is None or (found != content and place_in(directory.parent, found) != installed):
        _replace(installed.library, content)
    loads = f"{CONTAINER_LIBRARY}\n".encode()
    if _content(installed.preload) != loads:
        _replace(installed.preload, loads)


def must_be_loadable(installed: Installed) -> None:
    """Check that the library's file system is not mounted ``noexec`` (mount(8)).

    A container's mount of the library inherits ``noexec``. The dynamic loader of the container then
    prints an error, and runs programs without the library.

    Raises:
        LibraryNotLoadable: The file system is mounted ``noexec``.
        OSError: The flags of the file system cannot be read.
    """
    directory = installed.library.parent
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise LibraryNotLoadable(
            f"the file system of {directory} is mounted noexec, so containers would run without "
            "the library and without limits: mount the file system without noexec, or set a "
            "directory on another file system (--state-dir, agent.stateDir in the chart)"
        )


def _content(path: Path) -> bytes | None:
    try:
        return read_whole(path, _MOST_BYTES) if stat.S_ISREG(path.lstat().st_mode) else None
    except (FileNotFoundError, UnusableFileError):
        return None


def remove_placeholder(path: Path) -> None:
    """Remove the directory that containerd creates at ``path`` if the file to mount is missing.

    Raises OSError if the directory is not empty.
    """
    if path.is_dir() and not path.is_symlink():
        path.rmdir()


def _replace(path: Path, content: bytes) -> None:
    remove_placeholder(path)
    write_whole(path, content, 0o755)


LIMITS: Final = "limits"
USAGE: Final = "usage"
_WORD = re.compile(rf"[!-~]{{1,{native_layouts.UUID_SIZE - 1}}}")


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """A container's limits on one GPU."""

    uuid: str
    mib: int  # memory
    percent: int = 0  # percentage of the GPU's time, or 0 without such a limit


def encode_limits(
    gpus: Iterable[GpuLimit], turn: str = "", overhead_mib: int | None = None
) -> bytes:
    """Return the content of a limits file.

    ``turn`` is the path of the arbiter's socket in the container, or "" without an arbiter. On some
    GPUs, the memory of contexts and modules cannot be measured. On these GPUs, a process is charged
    at most ``overhead_mib`` for this memory, or the library's default if it is None. Raises
    ValueError if there are no GPUs or too many, or a GPU has no valid UUID.
    """
    known = tuple(gpus)
    if not 0 < len(known) <= native_layouts.MOST_GPUS or any(
        not _WORD.fullmatch(gpu.uuid) for gpu in known
    ):
        raise ValueError(
            f"limits are for 1 to {native_layouts.MOST_GPUS} GPUs with a UUID each: {known}"
        )
    lines = [f"{native_layouts.LIMITS_NAME} {native_layouts.LIMITS_VERSION}"]
    if overhead_mib is not None:
        lines.append(f"{native_layouts.LIMITS_OVERHEAD} {overhead_mib}")
    if turn:
        lines.append(f"{native_layouts.LIMITS_SOCKET} {turn}")
    lines += (f"{native_layouts.LIMITS_GPU} {gpu.uuid} {gpu.mib} {gpu.percent}" for gpu in known)
    return "\n".join([*lines, native_layouts.LIMITS_END, ""]).encode()
