"""The files of a release: each does what it is for, and one that does not is noticed."""

import hashlib
import platform
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from release.artefacts import (
    Release,
    build_chart,
    build_krew_manifests,
    build_notes,
    build_plugins,
    build_python,
    write_sums,
)
from release.sources import Sources
from release.verification import verify_release

from gputile.version import VERSION
from tests.chart.helmcli import CHART, helm
from tests.localcluster.gputile_image import EPOCH, ROOT

SOURCES = Sources(ROOT, EPOCH, "")
RELEASE = Release(SOURCES, platform.machine(), "localhost/gputile", "https://example.com/v1")
VALUES = ("--set=image.repository=localhost/gputile", "--kube-version=v1.36.2", "--namespace=gputile")
WHEEL = f"gputile-{VERSION}-py3-none-linux_{platform.machine()}.whl"
PLUGINS = f"gputile-kubectl-{VERSION}-{platform.machine()}.tar.gz"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All artefacts but the image, and their checksums."""
    output = tmp_path_factory.mktemp("dist")
    builders = (build_notes, build_python, build_chart, build_plugins, build_krew_manifests)
    write_sums(output, [path for build in builders for path in build(RELEASE, output)])
    return output


def test_what_was_built_works(built: Path) -> None:
    assert [line.partition(":")[0] for line in verify_release(RELEASE, built)] == [PLUGINS, WHEEL]
    assert subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=built, check=False).returncode == 0
    assert {path.name for path in built.iterdir()} == {
        "SHA256SUMS",
        f"gputile-{VERSION}.md",
        WHEEL,
        f"gputile-{VERSION}.tar.gz",
        f"gputile-{VERSION}.tgz",
        PLUGINS,
        "gputile.krew.yaml",
        "inspect-cgpu.krew.yaml",
    }


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
