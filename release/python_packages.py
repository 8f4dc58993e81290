"""Builds the Python packages of a release: gputile's wheel and the locked wheels that it needs."""

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
    """Return the environment variables of a build.

    ``epoch``, in seconds of Unix time, becomes the time of the built files.
    """
    return {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}


def build_distribution(
    project: Path, kind: str, directory: Path, settings: Mapping[str, str]
) -> Path:
    """Build the wheel (``kind`` "wheel") or the source archive ("sdist"). Return its path.

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
    """Install wheels into the directory ``target``. They are given as arguments of ``uv pip
    install``.

    Raises:
        subprocess.CalledProcessError: a wheel cannot be fetched.
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
    # The first line of each script contains the path of the Python that installed the script.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):
        (target / name).unlink(missing_ok=True)
    for recorded in target.glob("*.dist-info"):
        for name in ("direct_url.json", "uv_cache.json", "RECORD", "REQUESTED"):
            (recorded / name).unlink(
                missing_ok=True
            )  # they contain paths and times of this machine


def console_scripts(installed: Path) -> dict[str, tuple[str, str]]:
    """Return the module and the function of each of gputile's commands.

    They are read from the metadata of the wheel in ``installed``.
    """
    (declared,) = installed.glob("gputile-*.dist-info/entry_points.txt")
    parser = ConfigParser(delimiters=("=",))
    parser.read_string(declared.read_text())
    targets = {name: target.partition(":") for name, target in parser["console_scripts"].items()}
    return {name: (module, function) for name, (module, _, function) in targets.items()}


def slim(directory: Path) -> None:
    """Remove files of wheels that are not needed at run time.

    These are tests, headers, debug symbols, and second copies of libraries.

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
        # strip damages libraries that patchelf has changed. They are in directories named *.libs.
        elif not library.parent.name.endswith(".libs"):
            subprocess.run([strip, "--strip-unneeded", library], check=True)


def remove_empty(root: Path, keep: Collection[Path] = ()) -> None:
    """Remove the empty directories below ``root``, except the directories ``keep``."""
    for path in sorted(
        (each for each in root.rglob("*") if each.is_dir() and not each.is_symlink()), reverse=True
    ):
        if path not in keep and not any(path.iterdir()):
            path.rmdir()


def own_tool(name: str) -> Path:
    """Return the path of a program in the environment of the running Python."""
    return Path(sys.executable).with_name(name)


def compile_all(directory: Path, shown: str, settings: Mapping[str, str]) -> None:
    """Compile all modules in ``directory``, because the file systems of containers are read-only.

    ``shown`` is the path of the directory in the container. Python does not check the compiled
    files for changes at start, because an image does not change. Each directory is compiled by a
    separate process, because the strings that a process has interned before influence the compiled
    bytes.
    """
    mode = ["-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash"]
    command = [sys.executable, "-S", *mode, "-s", str(directory), "-p", shown, str(directory)]
    subprocess.run(command, check=True, env={**settings, "PYTHONPYCACHEPREFIX": ""})
