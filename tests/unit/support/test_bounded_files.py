"""Files that people name: whatever stands there is read to a bound, or refused in words."""

import os
import pty
import threading
import time
from pathlib import Path

import pytest

from gputile.api.quantity import MIB
from gputile.support.bounded_files import read_bounded
from gputile.support.files import UnusableFileError
from tests.oddfiles import ODD

pytestmark = pytest.mark.requirement("B4")


@pytest.mark.parametrize("kind", ODD)
def test_whatever_stands_there_ends_soon_and_in_words(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "x")
    with pytest.raises(OSError, match=r".") as raised:
        read_bounded(tmp_path / "x", MIB, silent_s=0.05)
    assert raised.value.strerror
    assert (
        raised.value.strerror
        in {
            "directory": "Is a directory",
            "pipe": "it is a pipe that nobody writes to: nothing came for 0.05 s",
            "link to itself": "Too many levels of symbolic links",
            "huge": "it is larger than 1 MiB",
            "device": "it is larger than 1 MiB",
        }[kind]
    )


def test_a_file_may_have_all_that_is_allowed_and_no_byte_more(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * MIB)
    assert len(read_bounded(tmp_path / "x", MIB)) == MIB
    (tmp_path / "x").write_bytes(b"x" * (MIB + 1))
    with pytest.raises(UnusableFileError, match="larger than 1 MiB"):
        read_bounded(tmp_path / "x", MIB)


def test_a_file_of_the_kernel_that_tells_no_size_is_read() -> None:
    assert b"Name:" in read_bounded("/proc/self/status", MIB)
    assert read_bounded("/dev/null", MIB) == b""


@pytest.mark.parametrize("parts", [[b"a", b"b"], [b""], [b"a" * 300_000]])
def test_a_pipe_is_read_to_its_end_however_late_that_comes(tmp_path: Path, parts: list[bytes]) -> None:
    os.mkfifo(tmp_path / "x")

    def write() -> None:
        with (tmp_path / "x").open("wb", buffering=0) as pipe:
            for part in parts:
                time.sleep(0.05)
                pipe.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bounded(tmp_path / "x", MIB, silent_s=5) == b"".join(parts)
    writer.join()


def test_who_has_a_pipe_open_may_take_longer_than_who_opens_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    writing = os.open(tmp_path / "x", os.O_RDWR)

    def write() -> None:
        os.write(writing, b"late")
        os.close(writing)

    late = threading.Timer(0.3, write)
    late.start()
    assert read_bounded(tmp_path / "x", MIB, silent_s=0.05, patient=True) == b"late"
    late.join()


def test_a_pipe_that_is_open_and_silent_is_not_waited_for_by_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    writing = os.open(tmp_path / "x", os.O_RDWR)
    with pytest.raises(UnusableFileError, match="nobody writes to"):
        read_bounded(tmp_path / "x", MIB, silent_s=0.05)
    os.close(writing)


def test_what_is_neither_file_nor_pipe_and_stays_silent_is_not_waited_for() -> None:
    ours, theirs = pty.openpty()
    with pytest.raises(UnusableFileError, match="no file with an end"):
        read_bounded(os.ttyname(theirs), MIB, silent_s=0.05, patient=True)
    os.close(ours)
    os.close(theirs)


def test_a_command_does_not_wait_for_its_own_output() -> None:
    reading, writing = os.pipe()
    before = os.dup(2)
    os.dup2(writing, 2)
    try:
        with pytest.raises(UnusableFileError, match="that this command itself writes to"):
            read_bounded(f"/proc/self/fd/{reading}", MIB, patient=True)
    finally:
        os.dup2(before, 2)
        for descriptor in (before, reading, writing):
            os.close(descriptor)
