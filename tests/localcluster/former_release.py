"""The release before this one, built from its sources, beside which today's components have to work.

The sources lie beside this file, for a checkout need not have the repository's history. No release has been tagged yet:
0.1.0 is the commit d5fe4f60, with which the promises of ``docs/reference/versions.md`` began; ``git archive`` made the
file of what the wheel is built from.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.python_packages import build_distribution, environment, own_tool

from tests.localcluster.gomodule import cache_directory, locked
from tests.localcluster.toolchain import ComponentMissing

VERSION = "0.1.0"
_SOURCES = Path(__file__).with_name(f"gputile-{VERSION}.tar.xz")
_EPOCH = 1_700_000_000  # seconds of Unix time
_RENAMED = {"--health-port": "--metrics-port"}  # of the agent


def former_gputile() -> Path:
    """Return the former release's program ``gputile``, built the first time, in an environment of its own.

    Raises:
        ComponentMissing: what it needs cannot be fetched.
    """
    directory = cache_directory() / f"gputile-{VERSION}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f".{directory.name}.lock")):
        if not (directory / "bin" / "gputile").exists():
            shutil.rmtree(directory, ignore_errors=True)
            try:
                _build(directory)
            except subprocess.CalledProcessError as failed:
                raise ComponentMissing(f"gputile {VERSION}: {failed}: {failed.stderr or ''}") from failed
    return directory / "bin" / "gputile"


def former_line(line: Sequence[str]) -> list[str]:
    """Return the command line of a component as the former release takes it."""
    options = (argument.partition("=") for argument in line[1:])
    return [str(former_gputile()), *(f"{_RENAMED.get(name, name)}{sign}{value}" for name, sign, value in options)]


def _build(directory: Path) -> None:
    settings = environment(_EPOCH)
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(scratch, "sources")
        with tarfile.open(_SOURCES) as packed:
            packed.extractall(sources, filter="data")
        wheel = build_distribution(sources, "wheel", Path(scratch, "wheel"), settings)
        _run([own_tool("uv"), "venv", "--quiet", "--python", sys.executable, directory])
        pip: list[str | Path] = [own_tool("uv"), "pip", "install", "--quiet", "--python", directory / "bin" / "python"]
        _run([*pip, "--require-hashes", "-r", sources / "requirements" / "runtime.txt"])
        _run([*pip, "--no-deps", wheel])


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
