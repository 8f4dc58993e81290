"""The release before this one, built from its sources, beside which today's components have to work.

What its wheel is built from lies beside this file, and so does its chart, for a checkout need not have the repository's
history. No release has been tagged yet: 0.1.0 is the commit d5fe4f60, with which the promises of
``docs/reference/versions.md`` began. ``git archive`` made the first file, ``release.archives.pack`` the second.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from release.image import CONFIG
from release.oci import write_image
from release.python_packages import build_distribution, environment, own_tool
from release.root_filesystem import build

from tests.localcluster.debian import debian_program
from tests.localcluster.gomodule import cache_directory, locked
from tests.localcluster.scratch import Scratch
from tests.localcluster.toolchain import ComponentMissing

VERSION = "0.1.0"
IMAGE = f"localhost/gputile:{VERSION}"
CHART = Path(__file__).with_name(f"gputile-{VERSION}.tgz")
_ARCHIVE = Path(__file__).with_name(f"gputile-{VERSION}.tar.xz")
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


def former_image() -> Path:
    """Return the archive of an image of the former release's sources, built the first time by today's recipe.

    That release had no recipe but its Dockerfile, which needs a registry.

    Raises:
        ComponentMissing: what it needs cannot be fetched.
    """
    archive = cache_directory() / f"gputile-{VERSION}.image.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with locked(archive.with_name(f".{archive.name}.lock")):
        if not archive.exists():
            debian_program("mmdebstrap")
            work = Scratch("gputile-image-")
            unfinished = archive.with_suffix(".unfinished")
            config = replace(CONFIG, labels={**CONFIG.labels, "org.opencontainers.image.version": VERSION})
            try:
                with _sources() as sources:
                    layers = build(sources, work.path, _EPOCH).layers
                write_image(unfinished, IMAGE, layers, config, _EPOCH, platform.machine())
            except subprocess.CalledProcessError as failed:
                raise ComponentMissing(f"gputile {VERSION}: {failed}: {failed.stderr or ''}") from failed
            finally:
                work.remove()
            unfinished.rename(archive)
    return archive


def former_line(line: Sequence[str]) -> list[str]:
    """Return the command line of a component as the former release takes it."""
    options = (argument.partition("=") for argument in line[1:])
    return [str(former_gputile()), *(f"{_RENAMED.get(name, name)}{sign}{value}" for name, sign, value in options)]


def _build(directory: Path) -> None:
    with _sources() as sources:
        wheel = build_distribution(sources, "wheel", sources / "wheel", environment(_EPOCH))
        _run([own_tool("uv"), "venv", "--quiet", "--python", sys.executable, directory])
        pip: list[str | Path] = [own_tool("uv"), "pip", "install", "--quiet", "--python", directory / "bin" / "python"]
        _run([*pip, "--require-hashes", "-r", sources / "requirements" / "runtime.txt"])
        _run([*pip, "--no-deps", wheel])


@contextmanager
def _sources() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory, tarfile.open(_ARCHIVE) as packed:
        packed.extractall(directory, filter="data")
        yield Path(directory)


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
