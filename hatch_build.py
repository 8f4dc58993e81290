"""Builds the CUDA library of native/ into the wheel, and beside the sources where the install is
editable.

It needs a C compiler and libc, nothing else. Without a compiler the install is one of pure Python:
everything works but isolation on the nodes, and the agent says so.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCES = ROOT / "native"
LIBRARY_GROUPS = ("base", "accounting", "timeslice", "hooks")
LIBRARY = Path("src", "gputile", "node", "isolation", "libgputile-cuda.so")
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fstack-protector-strong",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
)
# Debug symbols name sources by their path in the project: a version's wheels are the same wherever
# they are made.
_SAME_PATHS = f"-ffile-prefix-map={ROOT}=."
LINK = (
    "-shared",
    "-Wl,-Bsymbolic",
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-z,relro",
    f"-Wl,-soname,{LIBRARY.name}",
)


class CompilerMissing(RuntimeError):
    """There is no C compiler."""


def compiler() -> str:
    """Return the C compiler: ``CC``, else ``cc`` or ``gcc``.

    Raises:
        CompilerMissing: none is installed.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc"):
        if name and (found := shutil.which(name)):
            return found
    raise CompilerMissing("no C compiler (cc) is installed")


def library_sources() -> list[Path]:
    """Return what the library is compiled from."""
    return [source for group in LIBRARY_GROUPS for source in sorted((SOURCES / group).glob("*.c"))]


def build_library(output: Path, flags: Sequence[str] = ()) -> None:
    """Compile native/ into ``output``, which takes its place at once: a process that has it open
    keeps the old one.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    sources = library_sources()
    subprocess.run(
        [compiler(), *FLAGS, _SAME_PATHS, *flags, f"-I{SOURCES}", *LINK, "-o", beside, *sources],
        check=True,
    )
    beside.replace(output)


class LibraryHook(BuildHookInterface[Any]):
    """Called by hatchling before a wheel is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Build the library and make the wheel one for this machine's processor."""
        if self.target_name != "wheel" or not sys.platform.startswith("linux"):
            return
        try:
            build_library(ROOT / LIBRARY)
        except CompilerMissing as missing:
            self.app.display_warning(
                f"{missing}: gputile is installed without its library for isolation on GPU nodes"
            )
            return
        build_data["artifacts"] += [str(LIBRARY)]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{os.uname().machine}"
