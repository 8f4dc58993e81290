"""An image's archive is whole, or is refused: whatever is changed or missing in it."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from release.image import configuration
from release.oci import write_image
from release.oci_check import CheckedImage, DamagedImage, checked_image

from gputile.version import VERSION

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a small image's archive: a manifest, a configuration and two layers."""
    directory = tmp_path_factory.mktemp("image")
    for name in ("below", "above"):
        (directory / name / "etc").mkdir(parents=True)
        (directory / name / "etc" / name).write_text(name * 100)
    archive = directory / "image.tar"
    layers = [directory / "below", directory / "above"]
    write_image(archive, f"localhost/gputile:{VERSION}", layers, configuration(0, ""), 0, "x86_64")
    with tarfile.open(archive) as packed:
        found = {entry.name: packed.extractfile(entry) for entry in packed}
        return {name: file.read() for name, file in found.items() if file is not None}


def checked(files: Files, directory: Path) -> CheckedImage:
    archive = directory / "image.tar"
    with tarfile.open(archive, "w") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return checked_image(archive)


def blob_of(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def test_a_whole_image_is_told(files: Files, tmp_path: Path) -> None:
    image = checked(files, tmp_path)
    assert f"blobs/{image.digest.replace(':', '/')}" in files
    assert image.reference == f"localhost/gputile:{VERSION}"
    assert image.config["config"]["Labels"]["org.opencontainers.image.created"] == "1970-01-01T00:00:00Z"
    assert image.entries == 4


def test_each_missing_file_is_named(files: Files, tmp_path: Path) -> None:
    assert len(files) == 6
    for name in files:
        with pytest.raises(DamagedImage, match=rf"image\.tar has no {name}"):
            checked({other: content for other, content in files.items() if other != name}, tmp_path)


@given(data=st.data())
def test_no_byte_can_be_another(files: Files, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Of the index the image's name alone is free."""
    name = data.draw(st.sampled_from(sorted(files)), "file")
    place = data.draw(st.integers(0, len(files[name]) - 1), "place")
    content = bytearray(files[name])
    content[place] ^= data.draw(st.integers(1, 255), "bits")
    directory = tmp_path_factory.mktemp("changed")
    try:
        image = checked(files | {name: bytes(content)}, directory)
    except DamagedImage as error:
        event(str(error).partition(":")[0])
    else:
        assert name == "index.json"
        assert image.digest == checked(files, directory).digest


def test_layers_are_those_of_the_configuration(files: Files, tmp_path: Path) -> None:
    """Every digest is right, but the manifest names another layer than the configuration does."""
    index = json.loads(files["index.json"])
    manifest = json.loads(files[f"blobs/{index['manifests'][0]['digest'].replace(':', '/')}"])
    layer = gzip.compress(b"\0" * 10_240, mtime=0)
    described = {"digest": f"sha256:{hashlib.sha256(layer).hexdigest()}", "size": len(layer)}
    manifest["layers"][1] |= described
    text = json.dumps(manifest).encode()
    index["manifests"][0] |= {"digest": f"sha256:{hashlib.sha256(text).hexdigest()}", "size": len(text)}
    changed = {"index.json": json.dumps(index).encode(), blob_of(text): text, blob_of(layer): layer}
    with pytest.raises(DamagedImage, match="not those of its configuration"):
        checked(files | changed, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"x")[:-4], b"\0" * 512])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(content)
    with pytest.raises(DamagedImage, match=r"image\.tar "):
        checked_image(archive)


@pytest.mark.parametrize("index", [b"[]", b"{}", b"null", b'{"manifests": []}', b'{"manifests": [1]}', b"\xff", b"["])
def test_an_index_of_another_shape_is_refused(files: Files, index: bytes, tmp_path: Path) -> None:
    with pytest.raises(DamagedImage, match=r"image\.tar "):
        checked(files | {"index.json": index}, tmp_path)
