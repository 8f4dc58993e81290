"""Tries a release's files as their users will, each in an empty directory; the demo takes the project's examples."""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import yaml

from gputile.version import VERSION
from release.artefacts import PLUGINS, SUMS, Release
from release.oci import manifest_digest
from release.python_packages import own_tool

_FITS_NOT: Final = 3  # exit code of a simulation in which a pod has no place


class NotAsPromised(RuntimeError):
    """A file of a release does not do what it is for; the message says which, and what it did."""


def verify_release(release: Release, output: Path) -> Iterator[str]:
    """Try each file in ``output``; yield a line on each that is right.

    Raises:
        NotAsPromised: one is not.
    """
    checks: tuple[Callable[[Release, Path], str], ...] = (_sums, _wheel, _sources, _chart, _plugins, _image)
    for check in checks:
        yield check(release, output)


def _sums(_: Release, output: Path) -> str:
    lines = (output / SUMS).read_text().splitlines()
    for line in lines:
        digest, _gap, name = line.partition("  ")
        if hashlib.sha256((output / name).read_bytes()).hexdigest() != digest:
            raise NotAsPromised(f"{name} has another checksum than {SUMS} says: build the release anew")
    there = {path.name for path in output.iterdir() if path.is_file()} - {SUMS}
    if unlisted := sorted(there - {line.partition("  ")[2] for line in lines}):
        raise NotAsPromised(f"{', '.join(unlisted)}: not in {SUMS}; remove what is of another release")
    return f"{SUMS}: {len(lines)} files"


def _wheel(release: Release, output: Path) -> str:
    (wheel,) = output.glob(f"gputile-{VERSION}-*.whl")
    _demo(release, wheel)
    return f"{wheel.name}: installed into an empty environment with the newest of what it needs, runs the demo"


def _sources(_: Release, output: Path) -> str:
    """Build the wheel of the archive's sources: it is the one beside it."""
    sdist = output / f"gputile-{VERSION}.tar.gz"
    (wheel,) = output.glob(f"gputile-{VERSION}-*.whl")
    with tempfile.TemporaryDirectory() as directory:
        _unpack(sdist, Path(directory))
        built = Path(directory, "built")
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], Path(directory, sdist.name[:-7]))
        if [path.name for path in built.iterdir()] != [wheel.name]:
            raise NotAsPromised(f"{sdist.name} builds no {wheel.name}")
    return f"{sdist.name}: builds the wheel"


def _chart(release: Release, output: Path) -> str:
    """Compare the archive with the chart that the tests install."""
    chart, tested = output / f"gputile-{VERSION}.tgz", release.project / "charts" / "gputile"
    with tempfile.TemporaryDirectory() as directory:
        _unpack(chart, Path(directory))
        packed, sources = _contents(Path(directory, "gputile")), _contents(tested)
        if other := sorted(name for name in packed.keys() | sources.keys() if packed.get(name) != sources.get(name)):
            raise NotAsPromised(f"{chart.name}: {', '.join(other[:3])} is missing, added, or other than in {tested}")
        told = yaml.safe_load(Path(directory, "gputile", "Chart.yaml").read_text())
    if (told["version"], told["appVersion"]) != (VERSION, VERSION):
        raise NotAsPromised(f"{chart.name}: Chart.yaml says {told['version']} and {told['appVersion']}, not {VERSION}")
    return f"{chart.name}: the chart of {VERSION}, {len(sources)} files"


def _plugins(release: Release, output: Path) -> str:
    (archive,) = output.glob(f"gputile-kubectl-{VERSION}-*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory() as directory:
        _unpack(archive, Path(directory))
        for plugin, (program, _description) in PLUGINS.items():
            manifest = output / f"{plugin}.krew.yaml"
            if manifest.exists() and not release.url:
                raise NotAsPromised(f"{manifest.name} is of a release with an address, and this one has no address")
            if release.url:
                (listed,) = yaml.safe_load(manifest.read_text())["spec"]["platforms"]
                expected = (f"{release.url}/{archive.name}", digest, program)
                if (listed["uri"], listed["sha256"], listed["bin"]) != expected:
                    raise NotAsPromised(f"{manifest.name} is of another archive than {archive.name}")
            _run([Path(directory, program), "--help"], Path(directory))
    manifests = f"; krew's manifests have its checksum, and the address {release.url}, which was not asked"
    return f"{archive.name}: its plugins run{manifests if release.url else ''}"


def _image(_: Release, output: Path) -> str:
    (archive,) = output.glob(f"gputile-{VERSION}-*.image.tar")
    (bill,) = output.glob(f"gputile-{VERSION}-*.cdx.json")
    digest = manifest_digest(archive)
    if digest not in bill.read_text():
        raise NotAsPromised(f"{bill.name} is of another image than {archive.name}")
    return f"{archive.name}: {digest}, with its bill of materials"


def _demo(release: Release, wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        python = Path(directory, "bin", "python")
        _run([own_tool("uv"), "venv", "--quiet", "--python", sys.executable, directory], release.project)
        pip: list[str | Path] = [own_tool("uv"), "pip", "install", "--quiet", "--python", python]
        # As people install it, without the locks: those the image has, and the archive of the plugins.
        _run([*pip, wheel], release.project)
        examples = release.project / "examples"
        demo: list[str | Path] = ["simulate", "--cluster", examples / "cluster.yaml", "-f", examples / "workloads.yaml"]
        gputile: list[str | Path] = [python.with_name("gputile"), *demo, "--compare", "packing"]
        shown = _run(gputile, Path(directory), right=(0, _FITS_NOT))
        if "NODE" not in shown:
            raise NotAsPromised(f"{wheel.name}: the demo shows no nodes: {shown[:200]!r}")
        printed = _run([*gputile, "--output=json"], Path(directory), right=(0, _FITS_NOT))
        try:
            json.loads(printed)
        except ValueError as error:
            raise NotAsPromised(f"{wheel.name}: -o json prints other than JSON: {printed[:200]!r}") from error


def _contents(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def _unpack(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")


def _run(command: list[str | Path], directory: Path, right: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode not in right:
        words = " ".join(map(str, command[:4]))
        raise NotAsPromised(f"{words} ... ends with {done.returncode}: {done.stderr[-800:].strip()}")
    return done.stdout
