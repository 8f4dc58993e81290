"""Checks the files of a release in the way in which users install them.

The plugins must start, and the wheel must run the demo in an empty environment.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gputile.version import VERSION
from release.artefacts import PLUGINS, NotAsPromised, Release
from release.python_packages import own_tool

_FITS_NOT: Final = 3  # exit code of a simulation in which a pod was not placed


def verify_release(release: Release, output: Path) -> Iterator[str]:
    """Yield a line for each archive in ``output`` that works.

    Raises:
        NotAsPromised: an archive does not work.
    """
    (plugins,) = output.glob(f"gputile-kubectl-{VERSION}-*.tar.gz")
    with tempfile.TemporaryDirectory() as directory, tarfile.open(plugins) as packed:
        packed.extractall(directory, filter="data")
        for program, _description in PLUGINS.values():
            _run([Path(directory, program), "--help"], Path(directory))
    yield f"{plugins.name}: its plugins run"
    (wheel,) = output.glob(f"gputile-{VERSION}-*.whl")
    with tempfile.TemporaryDirectory() as directory:
        _run_demo(release.sources.project, wheel, Path(directory))
    yield (
        f"{wheel.name}: installed into an empty environment with the newest of what it needs, "
        f"runs the demo"
    )


def _run_demo(project: Path, wheel: Path, directory: Path) -> None:
    python = directory / "bin" / "python"
    _run([own_tool("uv"), "venv", "--quiet", "--python", sys.executable, directory], project)
    # Without the locked versions, like a user's installation. Image and plugins use the locks.
    _run([own_tool("uv"), "pip", "install", "--quiet", "--python", python, wheel], project)
    examples = project / "examples"
    demo: list[str | Path] = [
        "simulate",
        "--cluster",
        examples / "cluster.yaml",
        "-f",
        examples / "workloads.yaml",
    ]
    printed = _run(
        [python.with_name("gputile"), *demo, "--output=json"], directory, right=(0, _FITS_NOT)
    )
    try:
        json.loads(printed)
    except ValueError as error:
        raise NotAsPromised(
            f"{wheel.name}: -o json prints other than JSON: {printed[:200]!r}"
        ) from error


def _run(command: list[str | Path], directory: Path, right: tuple[int, ...] = (0,)) -> str:
    words = " ".join(map(str, command[:4]))
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotAsPromised(f"{words} ... cannot be started: {error.strerror}") from error
    if done.returncode not in right:
        raise NotAsPromised(
            f"{words} ... ends with {done.returncode}: {done.stderr[-800:].strip()}"
        )
    return done.stdout
