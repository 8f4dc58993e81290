"""Files that others read while they are written."""

import os
from pathlib import Path

import pytest

from gputile.support.files import write_whole


def test_a_file_is_replaced_at_once_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    with path.open("rb") as reading:
        before = os.umask(0o077)
        try:
            write_whole(path, b"new", 0o755)
        finally:
            os.umask(before)
        assert reading.read() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o755
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    (tmp_path / f".x.{os.getpid()}").mkdir()  # where the new one would be written first
    with pytest.raises(OSError, match="directory"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
