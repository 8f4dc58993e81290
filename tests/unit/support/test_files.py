"""Files that others read while they are written, and whatever stands in their place."""

import os
import threading
from pathlib import Path

import pytest

from gputile.api.quantity import MIB
from gputile.support.files import UnusableFileError, read_bounded, read_whole, write_whole
from tests.fakes.oddfiles import ODD


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


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    ODD[kind](path)
    with pytest.raises(OSError, match=r"not a regular file|Too many levels|more than 10 bytes"):
        read_whole(path, 10)


def test_a_file_may_have_all_the_bytes_that_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_whole(path, 10) == b"0123456789"
    with pytest.raises(UnusableFileError, match="more than 9 bytes"):
        read_whole(path, 9)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "y", 9)


SAID = {
    "directory": "Is a directory",
    "pipe": "it is a pipe without a writer",
    "link to itself": "Too many levels of symbolic links",
    "huge": "it is larger than 1 MiB",
    "device": "it is larger than 1 MiB",
}


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("kind", ODD)
def test_whatever_a_user_names_is_read_to_a_bound_or_refused_in_words(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "x")
    with pytest.raises(OSError, match=r".") as raised:
        read_bounded(tmp_path / "x", MIB)
    assert raised.value.strerror == SAID[kind]


@pytest.mark.requirement("B4")
def test_files_of_the_kernel_and_pipes_are_read_to_their_end(tmp_path: Path) -> None:
    assert b"Name:" in read_bounded("/proc/self/status", MIB)
    assert read_bounded("/dev/null", MIB) == b""
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, b"late")
        os.close(writing)

    late = threading.Timer(0.1, write)
    late.start()
    assert read_bounded(f"/proc/self/fd/{reading}", MIB) == b"late"
    late.join()
    os.close(reading)
