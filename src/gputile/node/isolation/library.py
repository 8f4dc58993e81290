"""Finds the library of native/, and tells how it and its limits get into a container.

It is loaded by /etc/ld.so.preload, a read-only mount: the dynamic loader reads that file for every program of the
container, whatever its environment says, and without CAP_SYS_ADMIN nobody inside can take the mount away. The
variable LD_PRELOAD would be gone with the first `env -i`. The loader of Nix is made to read another file instead.

The limits are lines, since the library has no JSON parser and needs none; native/accounting/limits.h says what they
mean. They are written by the agent and mounted read-only. What is held is a file of fixed size that all processes of
the container map (native/accounting/shared_usage.c); an empty one is all zeros.
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
CONTAINER_NIX_PRELOAD: Final = "/etc/ld-nix.so.preload"  # nixpkgs, glibc's dont-use-system-ld-so-preload.patch
CONTAINER_USAGE: Final = "/etc/gputile/usage"  # native/hooks/init.c
_PRELOAD = "ld.so.preload"
_MOST_BYTES = 64 * MIB


class LibraryMissing(RuntimeError):
    """This install of gputile has no library."""


class LibraryNotLoadable(RuntimeError):
    """The library is where a container's loader would ignore it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The library on a node: the file itself, and the one that tells the loader to load it."""

    library: Path
    preload: Path


def library_path() -> Path:
    """Return the library of this install.

    Raises:
        LibraryMissing: gputile was installed without a C compiler.
    """
    path = Path(__file__).with_name(NAME)
    if not path.exists():
        raise LibraryMissing(
            f"this gputile has no {NAME}, so it cannot isolate GPUs: install it from a wheel for this machine's "
            "processor, or with a C compiler"
        )
    return path


def place_in(directory: Path, content: bytes) -> Installed:
    """Return where a library with this content belongs under ``directory``: each version has its own place.

    Containers keep the one that they started with, and a new one changes none.
    """
    return place_named(directory, hashlib.sha256(content).hexdigest()[:16])


def place_named(directory: Path, version: str) -> Installed:
    return Installed(directory / version / NAME, directory / version / _PRELOAD)


def install(installed: Installed, content: bytes) -> None:
    """Have the library at its place, and what loads it: what is there already is read, and replaced if it is not that.

    A library of the version that its place is named by stays; where it is missing or damaged, ``content`` goes there.

    Raises:
        OSError: one of the files cannot be read or written.
    """
    place = installed.library.parent
    if not place.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    found = _content(installed.library)
    if found is None or (found != content and place_in(place.parent, found) != installed):
        _replace(installed.library, content)
    loads = f"{CONTAINER_LIBRARY}\n".encode()
    if _content(installed.preload) != loads:
        _replace(installed.preload, loads)


def must_be_loadable(installed: Installed) -> None:
    """Check that no flag of the library's file system keeps it from being loaded (mount(8), ``noexec``).

    A container's mount of it has that flag too, always so in a user namespace. The loader then says that the library
    cannot be preloaded, and runs the program without it.

    Raises:
        LibraryNotLoadable: the file system is mounted ``noexec``.
        OSError: it cannot be looked at.
    """
    directory = installed.library.parent
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise LibraryNotLoadable(
            f"the file system of {directory} is mounted noexec, so a container could run without the library in it, "
            "and without limits: mount it without noexec, or name a directory on another one (--state-dir, "
            "agent.stateDir in the chart)"
        )


def _content(path: Path) -> bytes | None:
    try:
        return read_whole(path, _MOST_BYTES) if stat.S_ISREG(path.lstat().st_mode) else None
    except (FileNotFoundError, UnusableFileError):
        return None


def remove_placeholder(path: Path) -> None:
    """Remove an empty directory in the place of a file: containerd makes one where the source of a mount is missing.

    Raises:
        OSError: it is not empty.
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
    """What a container may have of one GPU: MiB of memory, percent of time (0: no share of its own)."""

    uuid: str
    mib: int
    percent: int = 0


def encode_limits(gpus: Iterable[GpuLimit], turn: str = "", overhead_mib: int | None = None) -> bytes:
    """Return the content of a limits file.

    ``turn`` is the socket in the container where GPU time is handed out, "" for none. ``overhead_mib`` is the most
    that contexts and modules are charged to a process on a GPU where that is not known exactly; None leaves it to the
    library.

    Raises:
        ValueError: there are no GPUs, or too many, or one has no UUID.
    """
    known = tuple(gpus)
    if not 0 < len(known) <= native_layouts.MOST_GPUS or any(not _WORD.fullmatch(gpu.uuid) for gpu in known):
        raise ValueError(f"limits are of 1 to {native_layouts.MOST_GPUS} GPUs with a UUID each: {known}")
    lines = [f"{native_layouts.LIMITS_NAME} {native_layouts.LIMITS_VERSION}"]
    if overhead_mib is not None:
        lines.append(f"{native_layouts.LIMITS_OVERHEAD} {overhead_mib}")
    if turn:
        lines.append(f"{native_layouts.LIMITS_SOCKET} {turn}")
    lines += (f"{native_layouts.LIMITS_GPU} {gpu.uuid} {gpu.mib} {gpu.percent}" for gpu in known)
    return "\n".join([*lines, native_layouts.LIMITS_END, ""]).encode()
