"""Writing files that others read meanwhile."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before; it gets ``mode`` whatever umask.

    Raises:
        OSError: it cannot be written; what was there before is left as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(path)
