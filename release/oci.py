"""Writes an OCI image as an archive of an image layout (OCI image specification 1.1).

The same content always gives the same bytes and the same digest, because layers are plain tar files
with sorted names and one time. containerd, podman, skopeo and crane can load the archive (``ctr
images import``, ``podman load``).
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MEDIA: Final = "application/vnd.oci.image"
_BLOBS: Final = "blobs/sha256"


@dataclass(frozen=True)
class ImageConfig:
    """How containers of the image start. ``labels`` contains OCI's annotation keys and their
    values.
    """

    entrypoint: tuple[str, ...]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenImage:
    """The result of writing an image.

    ``digest`` is the digest of the manifest. ``layer_bytes`` contains the unpacked size of each
    layer.
    """

    digest: str
    layer_bytes: tuple[int, ...]


def write_image(
    archive: Path,
    reference: str,
    layers: Sequence[Path],
    config: ImageConfig,
    epoch: int,
    machine: str,
) -> WrittenImage:
    """Write the image of ``layers`` under the name ``reference``.

    ``layers`` are directories, the lowest layer first. All files in the image belong to root and
    have the time ``epoch``, in seconds of Unix time. Their permissions do not depend on the umask
    at build time. ``machine`` is the processor as printed by ``uname -m``.
    """
    blobs: dict[str, bytes] = {}
    plain = [_layer(layer, epoch) for layer in layers]
    packed = [gzip.compress(layer, mtime=0) for layer in plain]
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    settings = {
        "created": created,
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {
            "User": config.user,
            "Env": [f"{name}={value}" for name, value in config.environment.items()],
            "Entrypoint": list(config.entrypoint),
            "Cmd": list(config.command),
            "Labels": dict(sorted(config.labels.items())),
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in plain]},
        "history": [
            {"created": created, "created_by": f"gputile release: {layer.name}"} for layer in layers
        ],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _add(blobs, f"{_MEDIA}.config.v1+json", _json(settings)),
        "layers": [_add(blobs, f"{_MEDIA}.layer.v1.tar+gzip", layer) for layer in packed],
        "annotations": dict(sorted(config.labels.items())),
    }
    described = _add(blobs, f"{_MEDIA}.manifest.v1+json", _json(manifest))
    # containerd reads the whole name from its own key. The key of the specification contains a tag.
    names = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.index.v1+json",
        "manifests": [described | {"annotations": names}],
    }
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)} | {
        f"{_BLOBS}/{digest.removeprefix('sha256:')}": blob for digest, blob in blobs.items()
    }
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packing:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(files[name]), 0o644, epoch
            packing.addfile(entry, io.BytesIO(files[name]))
    return WrittenImage(str(described["digest"]), tuple(len(layer) for layer in plain))


def _layer(root: Path, epoch: int) -> bytes:
    """Return the tar file of a directory. Hard links become separate files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            # With this record, tarfile would write the second name of a file as a hard link.
            archive.inodes.clear()  # type: ignore[attr-defined]
            entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            entry.mode = (
                0o1777
                if entry.name == "tmp"
                else 0o644
                if entry.isreg() and not entry.mode & 0o100
                else 0o755
            )
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
    return packed.getvalue()


def _add(blobs: dict[str, bytes], media_type: str, blob: bytes) -> dict[str, Any]:
    blobs[_digest(blob)] = blob
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
