"""gputile's own image, built as a release's is, once for each state of the sources."""

import hashlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from release.image import BuiltImage, build_image
from release.sources import Sources

from gputile.version import VERSION
from tests.localcluster.binaries import debian_program
from tests.localcluster.gomodule import cache_directory, locked
from tests.localcluster.machine import Scratch

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = f"localhost/gputile:{VERSION}"
EPOCH = 1_700_000_000  # seconds of Unix time
REVISION = "c0ffee" * 6 + "cafe"  # no commit: the image does not change where its sources do not
_KEPT_S = 86_400  # a run on another checkout may be using an image
_SOURCES = (
    "src/gputile",
    "native",
    "release",
    "requirements/runtime.txt",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
)


def built_image() -> Path:
    """Return the archive of the sources' image; those of other states are removed when nobody has used them for a day.

    Raises:
        ComponentMissing: mmdebstrap is not installed and cannot be.
    """
    directory = cache_directory() / "image"
    archive = directory / _digest() / f"gputile-{VERSION}-{platform.machine()}.image.tar"
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / ".lock"):
        if not archive.exists():
            for other in directory.glob("*/*"):
                if other.stat().st_mtime < time.time() - _KEPT_S:
                    other.unlink()
            archive.parent.mkdir(exist_ok=True)
            build_into(archive.parent)
        for file in archive.parent.iterdir():
            os.utime(file)
    return archive


def build_into(output: Path) -> BuiltImage:
    """Build the image of the sources into ``output``.

    Raises:
        ComponentMissing: mmdebstrap is not installed and cannot be.
    """
    debian_program("mmdebstrap")
    work = Scratch("gputile-image-")
    try:
        return build_image(Sources(ROOT, EPOCH, REVISION), work.path, output, REFERENCE, platform.machine())
    finally:
        work.remove()


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    """Yield what the image is made of, without what a build of the wheel leaves beside the sources."""
    for name in _SOURCES:
        path = ROOT / name
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            if each.is_file() and each.suffix not in {".pyc", ".so", ".1"}:
                yield each
