"""Builds gputile's container image, which contains all components.

The chart starts each component with its own arguments.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gputile.version import VERSION
from release.oci import ImageConfig, WrittenImage, write_image
from release.root_filesystem import PREFIX, USER, build
from release.sbom import bill_of_materials
from release.sources import Sources

CONFIG: Final = ImageConfig(
    entrypoint=("gputile",),
    command=("--help",),
    environment={
        "PATH": f"{PREFIX}/bin:/usr/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    },
    # An unprivileged user. Only the agent runs as root, by its DaemonSet, because the kubelet's
    # sockets belong to root.
    user=f"{USER}:{USER}",
    labels={
        "org.opencontainers.image.title": "gputile",
        "org.opencontainers.image.description": "Sharing the GPUs of a Kubernetes cluster",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
    },
)


@dataclass(frozen=True)
class BuiltImage:
    """The files that were written.

    ``components`` is the number of entries in the bill of materials.
    """

    archive: Path
    bill: Path
    reference: str
    written: WrittenImage
    components: int


def configuration(epoch: int, revision: str) -> ImageConfig:
    """Return how containers of the image start, and the labels of the image.

    The labels contain the time ``epoch``, in seconds of Unix time, and the commit ``revision``. If
    ``revision`` is "", its label is omitted
    (https://specs.opencontainers.org/image-spec/annotations/).
    """
    made = {
        "org.opencontainers.image.created": datetime.fromtimestamp(epoch, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
    }
    if revision:
        made["org.opencontainers.image.revision"] = revision
    return replace(CONFIG, labels={**CONFIG.labels, **made})


def build_image(
    sources: Sources, work: Path, output: Path, reference: str, machine: str
) -> BuiltImage:
    """Build the image ``reference`` of ``sources``.

    Write the image and its bill of materials into ``output``. ``work`` is an empty directory for
    temporary files. ``machine`` is the processor as printed by ``uname -m``.

    Raises:
        ToolMissing: mmdebstrap or a C compiler is not installed.
        subprocess.CalledProcessError: a package cannot be fetched or built.
    """
    root = build(sources.project, work, sources.epoch)
    stem = f"gputile-{VERSION}-{machine}"
    archive, bill = output / f"{stem}.image.tar", output / f"{stem}.cdx.json"
    config = configuration(sources.epoch, sources.revision)
    written = write_image(archive, reference, root.layers, config, sources.epoch, machine)
    python = root.python
    bill.write_text(
        bill_of_materials(reference, written.digest, sources.epoch, root.debian, python)
    )
    return BuiltImage(archive, bill, reference, written, len(root.debian) + len(python))
