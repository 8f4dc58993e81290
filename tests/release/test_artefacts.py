"""The files of a release: each does what it is for, and what was changed afterwards is noticed."""

import hashlib
import io
import platform
import re
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree

import pytest
import yaml
from release.archives import pack
from release.artefacts import (
    SUMS,
    NotAsPromised,
    Release,
    build_chart,
    build_krew_manifests,
    build_notes,
    build_plugins,
    build_python,
)
from release.sources import Sources
from release.verification import verify_release

from gputile.version import VERSION
from tests.chart.helmcli import CHART, helm
from tests.localcluster.gputile_image import EPOCH, ROOT, built_image
from tests.localcluster.skipping import skip_or_fail
from tests.localcluster.toolchain import ComponentMissing

SOURCES = Sources(ROOT, EPOCH, "")
RELEASE = Release(SOURCES, platform.machine(), "localhost/gputile", "https://example.com/v1")
VALUES = ("--set=image.repository=localhost/gputile", "--kube-version=v1.36.2", "--namespace=gputile")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All artefacts, the image that of the other tests, and their checksums."""
    output = tmp_path_factory.mktemp("dist")
    for build in (build_notes, build_python, build_chart, build_plugins, build_krew_manifests):
        list(build(RELEASE, output))
    try:
        image = built_image()
    except ComponentMissing as missing:
        skip_or_fail(missing)
    for path in image.parent.iterdir():
        copy(path, output)
    write_sums(output)
    return output


@pytest.fixture
def dist(built: Path, tmp_path: Path) -> Path:
    """A copy of the artefacts, for a test to change."""
    return Path(copytree(built, tmp_path / "dist"))


def write_sums(output: Path) -> None:
    files = sorted(path for path in output.iterdir() if path.name != SUMS)
    text = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (output / SUMS).write_text(text)


def test_what_was_built_is_right(built: Path) -> None:
    assert [line.partition(":")[0] for line in verify_release(RELEASE, built)] == [
        SUMS,
        f"gputile-{VERSION}.tgz",
        f"gputile-kubectl-{VERSION}-{platform.machine()}.tar.gz",
        f"gputile-{VERSION}-{platform.machine()}.image.tar",
        f"gputile-{VERSION}-py3-none-linux_{platform.machine()}.whl",
        f"gputile-{VERSION}.tar.gz",
    ]
    assert subprocess.run(["sha256sum", "--quiet", "--check", SUMS], cwd=built, check=False).returncode == 0


def test_the_charts_archive_renders_what_the_chart_does(built: Path) -> None:
    archive = built / f"gputile-{VERSION}.tgz"
    assert helm("template", "g", archive, *VALUES) == helm("template", "g", CHART, *VALUES)
    assert f"version: {VERSION}\n" in helm("show", "chart", archive)


def test_the_notes_are_what_the_changelog_says_of_this_version(built: Path) -> None:
    notes = (built / f"gputile-{VERSION}.md").read_text("utf-8")
    heading, _, said = notes.partition("\n\n")
    assert re.fullmatch(rf"# gputile {re.escape(VERSION)} \(\d{{4}}-\d\d-\d\d\)", heading)
    assert said in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "\n## " not in said


def test_the_same_sources_give_the_same_files(built: Path, tmp_path: Path) -> None:
    for path in (*build_python(RELEASE, tmp_path), *build_chart(RELEASE, tmp_path)):
        assert path.read_bytes() == (built / path.name).read_bytes(), path.name


def test_krew_finds_the_plugins(built: Path) -> None:
    """The fields that krew asks for, and a name, version and sum as it checks them."""
    for plugin, program in (("gputile", "kubectl-gputile"), ("inspect-cgpu", "kubectl-inspect-cgpu")):
        manifest = yaml.safe_load((built / f"{plugin}.krew.yaml").read_text())
        assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
        assert manifest["metadata"]["name"] == plugin
        assert manifest["spec"]["version"] == f"v{VERSION}"
        assert len(manifest["spec"]["shortDescription"]) < 80
        (found,) = manifest["spec"]["platforms"]
        assert found["bin"] == program
        archive = built / found["uri"].removeprefix("https://example.com/v1/")
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == found["sha256"]
        with tarfile.open(archive) as packed:
            entry = packed.getmember(found["bin"])
            assert entry.mode & 0o111
            assert "LICENSE" in packed.getnames()


def test_without_an_address_there_is_nothing_for_krew_and_nothing_is_said_of_it(dist: Path) -> None:
    nowhere = replace(RELEASE, url="")
    with pytest.raises(NotAsPromised, match=r"gputile\.krew\.yaml .*no address"):
        list(verify_release(nowhere, dist))
    for path in dist.glob("*.krew.yaml"):
        path.unlink()
    assert list(build_krew_manifests(nowhere, dist)) == []
    write_sums(dist)
    line = next(each for each in verify_release(nowhere, dist) if each.startswith("gputile-kubectl-"))
    assert line.endswith(": its plugins run")


@pytest.mark.parametrize(
    ("name", "why"), [(f"gputile-{VERSION}.tgz", "another checksum"), ("left-over.whl", "not in SHA256SUMS")]
)
def test_a_file_that_was_changed_or_added_is_noticed(dist: Path, name: str, why: str) -> None:
    with (dist / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(NotAsPromised, match=why):
        list(verify_release(RELEASE, dist))


def test_a_chart_that_is_not_the_tested_one_is_noticed(dist: Path, tmp_path: Path) -> None:
    archive = dist / f"gputile-{VERSION}.tgz"
    chart = Path(copytree(CHART, tmp_path / "chart"))
    (chart / "templates" / "agent.yaml").unlink()
    archive.write_bytes(pack({"gputile": chart}, EPOCH))
    write_sums(dist)
    with pytest.raises(NotAsPromised, match=r"templates/agent\.yaml is missing"):
        list(verify_release(RELEASE, dist))


@pytest.mark.parametrize("name", ["gputile.krew.yaml", f"gputile-{VERSION}-{platform.machine()}.cdx.json"])
def test_files_of_two_releases_do_not_pass_for_one(dist: Path, name: str) -> None:
    text = (dist / name).read_text()
    foreign = re.sub(r"[0-9a-f]{64}", "0" * 64, text)
    assert foreign != text
    (dist / name).write_text(foreign)
    write_sums(dist)
    with pytest.raises(NotAsPromised, match=f"{name} is of another"):
        list(verify_release(RELEASE, dist))


def test_sources_of_something_else_are_noticed(dist: Path, tmp_path: Path) -> None:
    """An archive that builds a wheel of the right name, of other sources."""
    archive = dist / f"gputile-{VERSION}.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "sources", filter="data")
    changed = tmp_path / "sources" / f"gputile-{VERSION}" / "src" / "gputile" / "__init__.py"
    changed.write_text(f"{changed.read_text()}\nchanged = 1\n")
    archive.write_bytes(pack({f"gputile-{VERSION}": changed.parents[2]}, EPOCH))
    write_sums(dist)
    with pytest.raises(NotAsPromised, match=f"{re.escape(archive.name)} builds another wheel"):
        list(verify_release(RELEASE, dist))


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_archive_that_cannot_be_used_is_noticed(dist: Path, kind: str) -> None:
    (archive,) = (path for path in dist.glob(f"gputile-{VERSION}{kind}") if "kubectl" not in path.name)
    archive.write_bytes(pack({"PKG-INFO": "nothing"}, EPOCH) if kind == "*.tar.gz" else b"")
    write_sums(dist)
    with pytest.raises(NotAsPromised, match="builds no wheel" if kind == "*.tar.gz" else "pip install"):
        list(verify_release(RELEASE, dist))


def test_an_image_of_another_name_is_noticed(dist: Path) -> None:
    elsewhere = replace(RELEASE, repository="registry.example.com/gputile")
    with pytest.raises(NotAsPromised, match=rf"is the image localhost/gputile:\S+, not {elsewhere.reference}"):
        list(verify_release(elsewhere, dist))


def test_an_image_without_content_is_noticed(dist: Path) -> None:
    (archive,) = dist.glob("*.image.tar")
    with tarfile.open(archive) as packed:
        index = packed.extractfile("index.json")
        assert index is not None
        text = index.read()
    with tarfile.open(archive, "w") as packed:
        entry = tarfile.TarInfo("index.json")
        entry.size = len(text)
        packed.addfile(entry, io.BytesIO(text))
    write_sums(dist)
    with pytest.raises(NotAsPromised, match="has no oci-layout"):
        list(verify_release(RELEASE, dist))


@pytest.mark.parametrize("program", ["kubectl-gputile", "kubectl-inspect-cgpu"])
@pytest.mark.parametrize(
    ("text", "why"),
    [("#!/bin/sh\necho no >&2\nexit 1\n", "ends with 1: no"), ("#!/missing\n", "cannot be started: No such")],
)
def test_a_plugin_that_does_not_start_is_noticed(dist: Path, program: str, text: str, why: str) -> None:
    (archive,) = dist.glob("gputile-kubectl-*.tar.gz")
    with tarfile.open(archive) as packed:
        content = {entry: file.read() for entry in packed if (file := packed.extractfile(entry)) is not None}
    with tarfile.open(archive, "w") as packed:  # to compress it again would take longer than all else
        for entry, plain in content.items():
            changed = text.encode() if entry.name == program else plain
            entry.size = len(changed)
            packed.addfile(entry, io.BytesIO(changed))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    for manifest in dist.glob("*.krew.yaml"):
        manifest.write_text(re.sub(r"[0-9a-f]{64}", digest, manifest.read_text()))
    write_sums(dist)
    with pytest.raises(NotAsPromised, match=f"{program} --help .*{why}"):
        list(verify_release(RELEASE, dist))


def test_a_manifest_of_another_address_is_noticed(dist: Path) -> None:
    elsewhere = replace(RELEASE, url="https://example.com/v2")
    with pytest.raises(NotAsPromised, match=r"gputile\.krew\.yaml is of another archive"):
        list(verify_release(elsewhere, dist))


def test_a_chart_of_another_version_is_noticed(dist: Path, tmp_path: Path) -> None:
    """Even where the sources say the same: what is built is called by another number."""
    project = tmp_path / "project"
    chart = Path(copytree(CHART, project / "charts" / "gputile"))
    told = (chart / "Chart.yaml").read_text().replace(VERSION, "0.0.1")
    (chart / "Chart.yaml").write_text(told)
    (project / "examples").symlink_to(ROOT / "examples")
    (dist / f"gputile-{VERSION}.tgz").write_bytes(pack({"gputile": chart}, EPOCH))
    write_sums(dist)
    changed = replace(RELEASE, sources=replace(SOURCES, project=project))
    with pytest.raises(NotAsPromised, match=r"Chart\.yaml says 0\.0\.1"):
        list(verify_release(changed, dist))


@pytest.mark.parametrize(("printed", "why"), [("nothing", "shows no nodes"), ("NODE", "prints other than JSON")])
def test_a_wheel_that_shows_something_else_is_noticed(dist: Path, printed: str, why: str) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    (entry_points,) = (name for name in files if name.endswith("/entry_points.txt"))
    files[entry_points] = b"[console_scripts]\ngputile = shown_instead:main\n"
    files["shown_instead.py"] = f"def main():\n    print({printed!r})\n".encode()
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    write_sums(dist)
    with pytest.raises(NotAsPromised, match=why):
        list(verify_release(RELEASE, dist))
