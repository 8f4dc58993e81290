"""Writes archives of directories. The same content always gives the same bytes.

Names are sorted, all entries have the same time, and entries have no owner.
"""

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def pack(content: Mapping[str, Path | str], epoch: int) -> bytes:
    """Return a gzipped tar archive of ``content``.

    The keys of ``content`` are the names in the archive. The values are files, directories, or the
    texts of scripts. ``epoch`` is the time of every entry, in seconds of Unix time. Compiled Python
    files in directories are omitted.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, source in sorted(content.items()):
            if isinstance(source, str):
                _add(archive, name, source.encode(), 0o755, epoch)
            elif source.is_file():
                _add(archive, name, source.read_bytes(), 0o644, epoch)
            else:
                for path in sorted(each for each in source.rglob("*") if each.is_file()):
                    if "__pycache__" not in path.parts:
                        _add(
                            archive,
                            f"{name}/{path.relative_to(source)}",
                            path.read_bytes(),
                            _mode(path),
                            epoch,
                        )
    return gzip.compress(packed.getvalue(), mtime=0)


def _mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, epoch
    archive.addfile(entry, io.BytesIO(content))
