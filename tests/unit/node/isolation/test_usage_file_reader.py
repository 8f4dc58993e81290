"""What a container's library has counted is read as it stands there; whatever else stands there harms nobody."""

import fcntl
import os
import struct
from pathlib import Path

import pytest
from native.layouts import USAGE

from gputile.node.isolation.usage_file_reader import GpuUsage, read_usage
from gputile.node.native_layouts import USAGE_BYTES, USAGE_LOCK_SLOTS, USAGE_MAGIC, USAGE_SLOTS

pytestmark = pytest.mark.requirement("B7")


def usage_file(path: Path, *, top: int = 2, magic: int = USAGE_MAGIC, version: int = 1) -> Path:
    """A file in which slot 1 holds 5 bytes of GPU 0 and 7 of GPU 1, slot 0 much more."""
    content = bytearray(USAGE_BYTES)
    struct.pack_into("<IIII", content, 0, magic, version, top, 1)
    for gpu, held in enumerate((5, 7)):
        struct.pack_into("<QQ", content, USAGE.offsets["used"] + gpu * USAGE_SLOTS * 8, 1 << 63, held)
        struct.pack_into("<Q", content, USAGE.offsets["peak"] + gpu * 8, 100 + gpu)
        struct.pack_into("<Q", content, USAGE.offsets["refused"] + gpu * 8, 10 + gpu)
    path.write_bytes(content)
    return path


def test_a_file_that_no_process_has_used_says_that_nothing_is_held(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_bytes(bytes(USAGE_BYTES))
    assert read_usage(path, 2) == (GpuUsage(0, 0, 0),) * 2


def test_slots_of_the_dead_count_for_nothing(tmp_path: Path) -> None:
    """Nobody has locked one; tests/native has living processes."""
    assert read_usage(usage_file(tmp_path / "usage"), 2) == (GpuUsage(0, 100, 10), GpuUsage(0, 101, 11))


@pytest.mark.parametrize("what", ["missing", "directory", "pipe", "link", "short", "magic", "version"])
def test_what_cannot_be_read_is_none(tmp_path: Path, what: str) -> None:
    path = tmp_path / "usage"
    match what:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(usage_file(tmp_path / "other"))
        case "short":
            usage_file(path)
            os.truncate(path, 9000)
        case "magic":
            usage_file(path, magic=1)
        case "version":
            usage_file(path, version=2)
    assert read_usage(path, 2) is None


def locks(path: Path, slots: list[tuple[int, int]]) -> list[int]:
    """Lock slots as processes do, each pair a first slot and a number of them; return the open files."""
    found = []
    for first, count in slots:
        found.append(os.open(path, os.O_RDWR))
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS + first, count, 0)
        fcntl.fcntl(found[-1], fcntl.F_OFD_SETLK, lock)
    return found


def filled(path: Path) -> Path:
    """A file in which each slot holds a byte of GPU 0."""
    content = bytearray(USAGE_BYTES)
    struct.pack_into("<IIII", content, 0, USAGE_MAGIC, 1, USAGE_SLOTS, 1)
    struct.pack_into(f"<{USAGE_SLOTS}Q", content, USAGE.offsets["used"], *(1,) * USAGE_SLOTS)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("slots", "used"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(511, 1), (3, 2), (100, 1)], 4),
        ([(number, 1) for number in range(40)], 40),
        ([(0, 512)], 512),
        ([(500, 0)], 12),  # to the end of any file
        ([(number, 1) for number in range(0, 512, 2)], None),
    ],
)
def test_slots_count_that_are_locked(tmp_path: Path, slots: list[tuple[int, int]], used: int | None) -> None:
    path = filled(tmp_path / "usage")
    files = locks(path, slots)
    (found,) = read_usage(path, 1) or ()
    for file in files:
        os.close(file)
    assert found.used == used if used is not None else 256 <= found.used <= 512, "too many to ask for each"


def test_however_many_locks_a_container_has_few_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a scrape of a full node takes long, and the node's other containers have no metrics."""
    path = filled(tmp_path / "usage")
    files = locks(path, [(number, 1) for number in range(0, 512, 2)])
    asked = []
    real = fcntl.fcntl

    def counting(file: int, command: int, argument: bytes) -> bytes:
        asked.append(command)
        return bytes(real(file, command, argument))

    monkeypatch.setattr(fcntl, "fcntl", counting)
    read_usage(path, 1)
    several = len(asked)
    for file in files:
        os.close(file)
    asked.clear()
    files = locks(path, [(0, 512)])
    asked.clear()
    read_usage(path, 1)
    os.close(files[0])
    assert several <= 64
    assert len(asked) == 1, "one lock of all of them is one answer"
