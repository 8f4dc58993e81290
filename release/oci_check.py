"""Reads an image's archive as a container runtime does: each digest, size and layer is computed, none is believed."""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class DamagedImage(ValueError):
    """An archive holds no whole image; the message says what is missing or other than its digest says."""


@dataclass(frozen=True)
class CheckedImage:
    """``digest`` is the manifest's, ``reference`` the name with its tag, ``config`` what OCI calls the image's
    configuration, ``entries`` the number of files and directories in all layers.
    """

    digest: str
    reference: str
    config: Mapping[str, Any]
    entries: int


def checked_image(archive: Path) -> CheckedImage:
    """Return the one image in an archive of an image layout (OCI image specification 1.1), all of it read.

    Raises:
        DamagedImage: something that the image names is missing, or other than it says.
    """
    try:
        with tarfile.open(archive) as packed:
            files = {entry.name: packed.extractfile(entry) for entry in packed if entry.isreg()}
            return _image({name: found.read() for name, found in files.items() if found is not None})
    except KeyError as missing:
        raise DamagedImage(f"{archive.name} has no {missing.args[0]}") from missing
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedImage(f"{archive.name} cannot be unpacked: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedImage(f"{archive.name} is no image layout: {error}") from error


def _image(files: Mapping[str, bytes]) -> CheckedImage:
    layout = json.loads(files["oci-layout"])
    if layout != {"imageLayoutVersion": "1.0.0"}:
        raise ValueError(f"its layout is {layout}")
    (described,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(_blob(files, described))
    config = json.loads(_blob(files, manifest["config"]))
    layers = [gzip.decompress(_blob(files, layer)) for layer in manifest["layers"]]
    unpacked = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    if config["rootfs"]["diff_ids"] != unpacked:
        raise ValueError("its layers are not those of its configuration")
    entries = 0
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as unpacking:
            entries += len(unpacking.getnames())
    return CheckedImage(described["digest"], described["annotations"]["io.containerd.image.name"], config, entries)


def _blob(files: Mapping[str, bytes], described: Mapping[str, Any]) -> bytes:
    algorithm, _, digest = str(described["digest"]).partition(":")
    blob = files[f"blobs/{algorithm}/{digest}"]
    if algorithm != "sha256" or hashlib.sha256(blob).hexdigest() != digest or len(blob) != described["size"]:
        raise ValueError(f"the content of {described['digest']} is another")
    return blob
