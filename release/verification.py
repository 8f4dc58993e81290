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
from release.artefacts import PLUGINS, SUMS, NotAsPromised, Release
from release.oci_check import DamagedImage, checked_image
from release.python_packages import build_distribution, environment, own_tool

_FITS_NOT: Final = 3  # exit code of a simulation in which a pod has no place


def verify_release(release: Release, output: Path) -> Iterator[str]:
    """Try each file in ``output``, first what takes little time; yield a line on each that is right.

    Raises:
        NotAsPromised: one is not.
    """
    checks: tuple[Callable[[Release, Path], str], ...] = (_sums, _chart, _plugins, _image, _wheel, _sources)
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


def _sources(release: Release, output: Path) -> str:
    """Build the wheel of the archive's sources, and compare it with the one beside it."""
    sdist = output / f"gputile-{VERSION}.tar.gz"
    (wheel,) = output.glob(f"gputile-{VERSION}-*.whl")
    with tempfile.TemporaryDirectory() as directory:
        _unpack(sdist, Path(directory))
        project, settings = Path(directory, sdist.name.removesuffix(".tar.gz")), environment(release.sources.epoch)
        try:
            built = build_distribution(project, "wheel", Path(directory, "built"), settings)
        except (FileNotFoundError, subprocess.CalledProcessError) as failed:
            raise NotAsPromised(f"{sdist.name} builds no wheel: {failed}") from failed
        if built.read_bytes() != wheel.read_bytes():
            raise NotAsPromised(f"{sdist.name} builds another wheel than {wheel.name}: they are of different sources")
    return f"{sdist.name}: builds the wheel"


def _chart(release: Release, output: Path) -> str:
    """Compare the archive with the chart that the tests install."""
    chart, tested = output / f"gputile-{VERSION}.tgz", release.sources.project / "charts" / "gputile"
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


def _image(release: Release, output: Path) -> str:
    (archive,) = output.glob(f"gputile-{VERSION}-*.image.tar")
    (bill,) = output.glob(f"gputile-{VERSION}-*.cdx.json")
    try:
        image = checked_image(archive)
    except DamagedImage as error:
        raise NotAsPromised(str(error)) from error
    if image.reference != release.reference:
        raise NotAsPromised(f"{archive.name} is the image {image.reference}, not {release.reference}")
    if json.loads(bill.read_text())["metadata"]["component"]["version"] != image.digest:
        raise NotAsPromised(f"{bill.name} is of another image than {archive.name}")
    return f"{archive.name}: {image.digest}, {image.entries} files and directories, with its bill of materials"


def _demo(release: Release, wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        python = Path(directory, "bin", "python")
        _run([own_tool("uv"), "venv", "--quiet", "--python", sys.executable, directory], release.sources.project)
        pip: list[str | Path] = [own_tool("uv"), "pip", "install", "--quiet", "--python", python]
        # As people install it, without the locks: those the image has, and the archive of the plugins.
        _run([*pip, wheel], release.sources.project)
        examples = release.sources.project / "examples"
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
    words = " ".join(map(str, command[:4]))
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotAsPromised(f"{words} ... cannot be started: {error.strerror}") from error
    if done.returncode not in right:
        raise NotAsPromised(f"{words} ... ends with {done.returncode}: {done.stderr[-800:].strip()}")
    return done.stdout
