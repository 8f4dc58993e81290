"""Finds and installs the library of native/, and encodes its limits.

A container loads it through /etc/ld.so.preload, a read-only mount. The dynamic loader reads that
file for every program, whatever its environment, and without CAP_SYS_ADMIN no process in the
container can remove the mount. The variable LD_PRELOAD would be lost at the first `env -i`. The
loader of Nix reads another file instead.

The limits are lines of text, since the library has no JSON parser; native/accounting/limits.h
describes them. The agent writes them, and they are mounted read-only. The usage file has a fixed
size, is initially all zeros, and is mapped by all processes of the container
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
    """A container's loader would ignore the library."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The library on a node, and the file ld.so.preload that names it."""

    library: Path
    preload: Path


def library_path() -> Path:
    """Raises LibraryMissing if gputile was installed without a C compiler."""
    path = Path(__file__).with_name(NAME)
    if not path.exists():
        raise LibraryMissing(
            f"this gputile has no {NAME}, so it cannot isolate GPUs: install it from a wheel for "
            "this machine's processor, or with a C compiler"
        )
    return path


def place_in(directory: Path, content: bytes) -> Installed:
    """Return where a library with this content is installed under ``directory``.

    Each version has its own directory, so a new version changes nothing for containers that have
    started.
    """
    return place_named(directory, hashlib.sha256(content).hexdigest()[:16])


def place_named(directory: Path, version: str) -> Installed:
    return Installed(directory / version / NAME, directory / version / _PRELOAD)


def install(installed: Installed, content: bytes) -> None:
    """Install the library and its ld.so.preload, unless they are installed already.

    A library whose version matches its directory is kept; a missing or damaged one is replaced by
    ``content``.

    Raises:
        OSError: a file cannot be read or written.
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

    A container's mount of the library inherits that flag. The loader then reports that the library
    cannot be preloaded, and runs the program without it.

    Raises:
        LibraryNotLoadable: the file system is mounted ``noexec``.
        OSError: its flags cannot be read.
    """
    directory = installed.library.parent
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise LibraryNotLoadable(
            f"the file system of {directory} is mounted noexec, so a container could run without "
            "the library in it, and without limits: mount it without noexec, or name a directory "
            "on another one (--state-dir, agent.stateDir in the chart)"
        )


def _content(path: Path) -> bytes | None:
    try:
        return read_whole(path, _MOST_BYTES) if stat.S_ISREG(path.lstat().st_mode) else None
    except (FileNotFoundError, UnusableFileError):
        return None


def remove_placeholder(path: Path) -> None:
    """Remove an empty directory at a file's path, which containerd creates for a missing source.

    Raises:
        OSError: the directory is not empty.
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
    """A container's limit on one GPU: MiB of memory, and percent of time (0: no share of time)."""

    uuid: str
    mib: int
    percent: int = 0


def encode_limits(
    gpus: Iterable[GpuLimit], turn: str = "", overhead_mib: int | None = None
) -> bytes:
    """Return the content of a limits file.

    ``turn`` is the path of the arbiter's socket in the container, "" for none. ``overhead_mib`` is
    the maximum that a process is charged for contexts and modules on a GPU where these cannot be
    measured; None means the library's default.

    Raises:
        ValueError: there are no GPUs, too many, or one without a UUID.
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
