"""The container image as it is built: what is in it, that it runs, and that the same sources give the same bytes."""

import gzip
import io
import json
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from release.image import CONFIG, BuiltImage, configuration
from release.root_filesystem import SITE_PACKAGES

from tests.localcluster.binaries import skip_or_fail
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.gputile_image import EPOCH, REFERENCE, REVISION, build_into, built_image
from tests.localcluster.machine import Scratch

# What somebody who broke into a container would look for first.
UNWANTED = re.compile(
    r"/(bash|dash|sh|busybox|perl|gcc|cc|ld|as|make|apt|apt-get|dpkg|tar|curl|wget|nc|mount|su|sudo|pip3?|uv|m?awk)$"
)


@dataclass(frozen=True)
class Image:
    """An image that was read back from its archive, and its files unpacked as root would find them."""

    built: BuiltImage
    manifest: dict[str, Any]
    config: dict[str, Any]
    layers: tuple[bytes, ...]
    root: Path

    def entries(self) -> Iterator[tarfile.TarInfo]:
        """Yield what all layers hold."""
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                yield from archive

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the image, in its root."""
        environment = dict(CONFIG.environment)
        return subprocess.run(
            ["/usr/sbin/chroot", str(self.root), *command], capture_output=True, text=True, check=False, env=environment
        )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image of the sources, built now."""
    scratch = Scratch("gputile-image-test-")
    try:
        yield _read(build_into(scratch.path), scratch.path / "root")
    except ComponentMissing as missing:
        skip_or_fail(missing)
    finally:
        scratch.remove()


def _read(built: BuiltImage, root: Path) -> Image:
    with tarfile.open(built.archive) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        content = {name: found.read() for name, found in files.items() if found is not None}

    def blob(described: dict[str, Any]) -> bytes:
        found = content[f"blobs/{described['digest'].replace(':', '/')}"]
        assert len(found) == described["size"]
        return found

    (described,) = json.loads(content["index.json"])["manifests"]
    assert described["digest"] == built.written.digest
    assert described["annotations"]["io.containerd.image.name"] == REFERENCE
    manifest = json.loads(blob(described))
    layers = tuple(gzip.decompress(blob(layer)) for layer in manifest["layers"])
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            archive.extractall(root, filter="fully_trusted")
    return Image(built, manifest, json.loads(blob(manifest["config"])), layers, root)


def test_two_builds_have_one_digest(image: Image) -> None:
    """The other one is of another day or of another run: whatever built it was not told what this one is."""
    assert built_image().read_bytes() == image.built.archive.read_bytes()


def test_the_image_says_what_it_is_and_of_which_commit(image: Image) -> None:
    """In the configuration, where container runtimes show it, and in the manifest, where registries do."""
    labels = {
        **CONFIG.labels,
        "org.opencontainers.image.created": "2023-11-14T22:13:20Z",
        "org.opencontainers.image.revision": REVISION,
    }
    assert image.config["config"]["Labels"] == image.manifest["annotations"] == labels
    assert "org.opencontainers.image.revision" not in configuration(EPOCH, "").labels


def test_the_image_is_small(image: Image) -> None:
    """Debian's layer is Python and what it is linked with; beside it the wheels and gputile are below 150 MB."""
    debian, wheels, own = image.built.written.layer_bytes
    assert wheels + own < 150e6
    assert debian < 60e6
    assert own < 15e6  # what an upgrade of gputile alone pulls


def test_the_image_has_what_runs_and_nothing_to_build_or_break_in_with(image: Image) -> None:
    names = [f"/{entry.name}" for entry in image.entries() if not entry.isdir()]
    assert [name for name in names if UNWANTED.search(name)] == []
    assert not [name for name in names if re.search(r"/(tests|ensurepip|idlelib)/", name)]
    assert not [name for name in names if name.endswith((".c", ".h", ".pyx"))]
    assert not [entry.name for entry in image.entries() if entry.mode & (stat.S_ISUID | stat.S_ISGID)]
    writable = [entry.name for entry in image.entries() if not entry.issym() and entry.mode & stat.S_IWOTH]
    assert writable == ["tmp"]


def test_nothing_of_the_building_machine_is_in_the_image(image: Image) -> None:
    for entry in image.entries():
        assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
        assert entry.mtime == 1_700_000_000
    foreign = str(Path.home()).encode(), str(Path.cwd()).encode()
    own = image.root / SITE_PACKAGES.lstrip("/") / "gputile"
    for path in (*own.rglob("*"), *(image.root / "etc").rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            assert not [each for each in foreign if len(each) > 5 and each in content], path


def test_no_module_is_compiled_at_the_start(image: Image) -> None:
    """File systems of containers are read-only: what is not compiled in the image is compiled at each start."""
    done = image.run("python", "-v", "-c", "import gputile.node.agent.__main__, gputile.controlplane.extender.server")
    assert done.returncode == 0
    assert re.findall(r"code object from '(.*\.py)'", done.stderr) == []
    assert re.search(r"code object from '/opt/gputile/.*\.pyc'", done.stderr)


def test_the_bill_of_materials_is_of_what_is_there(image: Image) -> None:
    text = image.built.bill.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["version"] == image.built.written.digest
    named = {unquote(component["purl"]).split("@")[0] for component in bill["components"]}
    there = {path.name.split("-")[0] for path in (image.root / SITE_PACKAGES.lstrip("/")).glob("*.dist-info")}
    assert {name.removeprefix("pkg:pypi/") for name in named if ":pypi/" in name} == {
        name.lower().replace("_", "-") for name in there
    }
    documented = {path.name for path in (image.root / "usr/share/doc").iterdir()}
    assert documented <= {name.removeprefix("pkg:deb/debian/") for name in named if ":deb/" in name}
    locked = (Path(__file__).parents[2] / "requirements" / "runtime.txt").read_text()
    for component in bill["components"]:
        if ":pypi/" in component["purl"] and component["name"] != "gputile":
            assert f"{component['name'].lower().replace('_', '-')}=={component['version']}" in locked


def test_what_is_in_the_image_comes_with_its_licences(image: Image) -> None:
    """Each package of Debian with its copyright file, the texts that those refer to, and each by name in the bill."""
    bill = json.loads(image.built.bill.read_text())
    unnamed = [component["name"] for component in bill["components"] if not component.get("licenses")]
    assert unnamed == ["libcrypt1"], "its copyright file tells them in prose"
    debian = [each["name"] for each in bill["components"] if each["purl"].startswith("pkg:deb/")]
    documents = image.root / "usr/share/doc"
    texts = {name: (documents / name / "copyright").read_text("utf-8") for name in debian}
    assert {"libstdc++6", "libgcc-s1", "gcc-12-base"} < texts.keys()
    referred = {
        found for text in texts.values() for found in re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text)
    }
    assert {"GPL-3", "Apache-2.0"} < referred
    assert [name for name in sorted(referred) if not (image.root / "usr/share/common-licenses" / name).is_file()] == []
    assert [path.name for path in documents.iterdir() if path.is_symlink() and not path.exists()] == []
