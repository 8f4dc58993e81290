"""What may stand in the place of a file on a machine that others use, and whose disk may fail."""

import os
from collections.abc import Callable
from pathlib import Path


def _full_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ODD: dict[str, Callable[[Path], None]] = {
    "directory": _full_directory,
    "pipe": os.mkfifo,
    "link to itself": _loop,
    "huge": _huge,
    "device": lambda path: path.symlink_to("/dev/zero"),
}
"""Makes each kind at a path where nothing is. Reading a pipe waits for ever, a device has no end."""
