"""The Python packages of a release: gputile's own wheel, and the locked wheels that it needs, as
they lie on a disk.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Final

_WITHOUT_SUFFIXES: Final = {".pyi", ".pxd", ".pyx", ".h", ".c"}


class ToolMissing(RuntimeError):
    """A program that builds a release is not installed."""


def environment(epoch: int) -> dict[str, str]:
    """Return the environment of what builds: ``epoch``, in seconds of Unix time, goes into the
    files.
    """
    return {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}


def build_distribution(
    project: Path, kind: str, directory: Path, settings: Mapping[str, str]
) -> Path:
    """Build the wheel (``kind`` "wheel") or the archive of the sources ("sdist") into
    ``directory``; return its path.

    Raises:
        ToolMissing: no C compiler is installed.
        subprocess.CalledProcessError: the build fails.
    """
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        f"--target={kind}",
        f"--directory={directory}",
    ]
    built = subprocess.run(
        command, check=False, cwd=project, env=settings, capture_output=True, text=True
    )
    if built.returncode != 0:
        sys.stderr.write(built.stderr)
        built.check_returncode()
    (found,) = directory.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    if kind == "wheel" and not found.stem.endswith(os.uname().machine):
        raise ToolMissing(
            "no C compiler (cc) is installed, which the library for GPU nodes needs: apt-get "
            "install gcc"
        )
    return found


def install(target: Path, what: Sequence[str | Path], settings: Mapping[str, str]) -> None:
    """Install wheels, given as arguments of ``uv pip install``, into the directory ``target``.

    Raises:
        subprocess.CalledProcessError: one cannot be fetched.
    """
    command: list[str | Path] = [
        own_tool("uv"),
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--python-version=3.11",
        "--target",
        target,
    ]
    options = ["--link-mode=copy", "--only-binary=:all:", f"--python={sys.executable}"]
    subprocess.run([*command, *options, *what], check=True, env=dict(settings))
    # The first line of each script names the Python that installed it.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):
        (target / name).unlink(missing_ok=True)
    for recorded in target.glob("*.dist-info"):
        for name in ("direct_url.json", "uv_cache.json", "RECORD", "REQUESTED"):
            (recorded / name).unlink(missing_ok=True)  # they tell paths and times of this machine


def console_scripts(installed: Path) -> dict[str, tuple[str, str]]:
    """Return the module and the function of each of gputile's commands, as its wheel in
    ``installed`` declares them.
    """
    (declared,) = installed.glob("gputile-*.dist-info/entry_points.txt")
    parser = ConfigParser(delimiters=("=",))
    parser.read_string(declared.read_text())
    targets = {name: target.partition(":") for name, target in parser["console_scripts"].items()}
    return {name: (module, function) for name, (module, _, function) in targets.items()}


def slim(directory: Path) -> None:
    """Remove what wheels carry beside the code that runs: tests, headers, debug symbols, a
    library's second copy.

    Raises:
        ToolMissing: strip is not installed.
    """
    for path in sorted(directory.rglob("*")):
        if path.is_file() and (
            path.suffix in _WITHOUT_SUFFIXES or "tests" in path.relative_to(directory).parts
        ):
            path.unlink()
    remove_empty(directory)
    strip = shutil.which("strip")
    if strip is None:
        raise ToolMissing(
            "strip is not installed, which takes debug symbols out of libraries: apt-get install "
            "binutils"
        )
    seen: dict[tuple[Path, bytes], Path] = {}
    for library in sorted(path for path in directory.rglob("*.so*") if path.is_file()):
        key = (library.parent, hashlib.sha256(library.read_bytes()).digest())
        if (first := seen.setdefault(key, library)) != library:
            library.unlink()
            library.symlink_to(first.name)
        # strip damages libraries that patchelf has changed, which are in directories *.libs.
        elif not library.parent.name.endswith(".libs"):
            subprocess.run([strip, "--strip-unneeded", library], check=True)


def remove_empty(root: Path, keep: Collection[Path] = ()) -> None:
    """Remove the directories below ``root`` that are empty, but those to ``keep``."""
    for path in sorted(
        (each for each in root.rglob("*") if each.is_dir() and not each.is_symlink()), reverse=True
    ):
        if path not in keep and not any(path.iterdir()):
            path.rmdir()


def own_tool(name: str) -> Path:
    """Return a program of the environment that this Python is of."""
    return Path(sys.executable).with_name(name)


def compile_all(directory: Path, shown: str, settings: Mapping[str, str]) -> None:
    """Compile all modules in ``directory``, which lies at ``shown`` where they run: file systems of
    containers are read-only. None is checked at the start, since nothing changes in an image.

    A process of its own compiles each directory: what a process has interned before shows in the
    compiled bytes.
    """
    mode = ["-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash"]
    command = [sys.executable, "-S", *mode, "-s", str(directory), "-p", shown, str(directory)]
    subprocess.run(command, check=True, env={**settings, "PYTHONPYCACHEPREFIX": ""})
