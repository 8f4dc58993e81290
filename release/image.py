"""gputile's container image: one for every component; the chart starts each with its own arguments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.version import VERSION
from release.oci import ImageConfig, WrittenImage, write_image
from release.root_filesystem import PREFIX, USER, build
from release.sbom import bill_of_materials

CONFIG: Final = ImageConfig(
    entrypoint=("gputile",),
    command=("--help",),
    environment={
        "PATH": f"{PREFIX}/bin:/usr/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    },
    # Nobody's number. The agent alone runs as root, as its DaemonSet says: the kubelet's sockets are root's.
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
    """The files that were written, and what they are of. ``components`` counts the bill's entries."""

    archive: Path
    bill: Path
    reference: str
    written: WrittenImage
    components: int


def build_image(project: Path, work: Path, output: Path, reference: str, epoch: int, machine: str) -> BuiltImage:
    """Build the image ``reference`` of the sources in ``project``; write it and its bill of materials into ``output``.

    ``work`` is an empty directory for what is unpacked. ``epoch`` is in seconds of Unix time. ``machine`` is the
    processor as ``uname -m`` says it.

    Raises:
        ToolMissing: mmdebstrap or a C compiler is not installed.
        subprocess.CalledProcessError: a package cannot be fetched or built.
    """
    root = build(project, work, epoch)
    stem = f"gputile-{VERSION}-{machine}"
    archive, bill = output / f"{stem}.image.tar", output / f"{stem}.cdx.json"
    written = write_image(archive, reference, root.layers, CONFIG, epoch, machine)
    python = root.python
    bill.write_text(bill_of_materials(reference, written.digest, epoch, root.debian, python))
    return BuiltImage(archive, bill, reference, written, len(root.debian) + len(python))
