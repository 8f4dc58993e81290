"""What C and Python have in common is what it was: containers that run keep their files over an upgrade."""

import struct
from pathlib import Path

import pytest
from native.layouts import ARBITER_MESSAGE, USAGE, USAGE_SLOT, Layout, headers

from gputile.node.arbiter.messages import LAYOUT, Message, MessageKind
from gputile.node.isolation.library import GpuLimit, encode_limits
from gputile.node.native_layouts import USAGE_BYTES, USAGE_LOCK_SLOTS


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("path", headers(), ids=lambda path: path.parent.name)
def test_the_headers_are_those_of_the_description(path: Path) -> None:
    """The C compiler asserts sizes and offsets that come from here."""
    assert path.read_text(encoding="utf-8") == headers()[path], "make layouts"


@pytest.mark.parametrize(
    ("layout", "form"),
    [
        (ARBITER_MESSAGE, "<BBHIQQQ"),
        (USAGE_SLOT, "<iIQ"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_the_bytes_of_version_1(layout: Layout, form: str) -> None:
    """Whatever a version wrote, the next one reads: a change of these needs another version of the file or message."""
    known, now = struct.Struct(form), layout.struct
    data = bytes(range(1, 1 + known.size % 256)).ljust(known.size, b"\x07")
    assert now.size == known.size == layout.size
    assert now.unpack(data) == known.unpack(data)


def test_the_usage_file_of_version_1() -> None:
    assert USAGE.offsets == {
        "magic": 0, "version": 4, "top": 8, "counts": 12, "slot": 16, "used": 8208, "word": 73744, "peak": 73872,
        "refused": 74000, "context": 74128,
    }  # fmt: skip
    assert (USAGE.size, USAGE_BYTES, USAGE_LOCK_SLOTS) == (74256, 262144, 262145)


def test_a_message_and_limits_of_version_1() -> None:
    assert LAYOUT.format == "<BBHIQQQ"
    assert Message(MessageKind.WANT, gpu=3).encode() == b"\x03\x01\x03\0" + bytes(28)
    assert encode_limits([GpuLimit("GPU-0", 1024, 30)]) == b"gputile 1\ncard GPU-0 1024 30\nend\n"
