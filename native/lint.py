"""Checks the C code with clang-format, the C compiler, clang and clang-tidy.

`make lint-c`, which is a part of `make lint`, runs this module. A file without mistakes is checked
again only after the file, a header or the rules have changed. clang-format and clang-tidy are
development requirements. clang is run only if it is installed.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hatch_build import FLAGS, LIBRARY_GROUPS, ROOT, SOURCES, CompilerMissing, compiler

_CACHE: Final = ROOT / ".cache" / "lint-c"
_TOOLS: Final = Path(sys.executable).parent
_RULES: Final = (
    ROOT / ".clang-tidy",
    ROOT / ".clang-format",
    ROOT / "hatch_build.py",
    ROOT / "requirements" / "dev.txt",
)
_TEST_FLAGS: Final = (
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-DTARGET=fuzz_limits",
)


def main() -> int:
    """Check all files, and print the mistakes. Return 1 if there are any."""
    sources = [
        path
        for group in (*LIBRARY_GROUPS, "simulated")
        for path in sorted((SOURCES / group).glob("*.c"))
    ]
    programs = sorted((ROOT / "tests").rglob("*.c"))
    everything = [*sources, *programs, *sorted(SOURCES.glob("*/*.h"))]
    with ThreadPoolExecutor(2) as pool:
        found = [check_form(everything)]
        found += pool.map(check, [*sources, *programs])
    found = [each for each in found if each]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


def _flags(path: Path) -> tuple[str, ...]:
    """Return the compiler flags for a file."""
    return (*(FLAGS if SOURCES in path.parents else _TEST_FLAGS), f"-I{SOURCES}")


def check_form(paths: Sequence[Path]) -> str:
    """Return where files are not formatted by the rules, or "" if all are."""
    return _run(_TOOLS / "clang-format", "-n", "-Werror", *paths)


def check(path: Path) -> str:
    """Return the mistakes in a file, or "" if there are none."""
    flags = _flags(path)
    clean = _CACHE / _key(path, flags)
    if clean.exists():
        return ""
    found = _run(compiler(), *flags, "-Werror", "-fsyntax-only", path)
    if clang := shutil.which("clang"):
        found += _run(clang, *flags, "-Werror", "-fsyntax-only", path)
    if SOURCES in path.parents:
        found += _run(_TOOLS / "clang-tidy", "--quiet", path, "--", *flags)
    if not found:
        clean.parent.mkdir(parents=True, exist_ok=True)
        clean.touch()
    return found


def _key(path: Path, flags: tuple[str, ...]) -> str:
    read = [path, *sorted(SOURCES.glob("*/*.h")), *sorted(SOURCES.glob("*/*.def")), *_RULES]
    return hashlib.sha256(repr((flags, [each.read_bytes() for each in read])).encode()).hexdigest()[
        :24
    ]


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CompilerMissing as missing:
        sys.exit(f"{missing}: apt-get install gcc libc6-dev")
