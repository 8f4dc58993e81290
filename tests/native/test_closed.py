"""No limits file, a damaged one, no place to count: then there is no GPU, and stderr says what to do."""

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hatch_build import SOURCES
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.isolation.library import GpuLimit, encode_limits
from gputile.node.native_layouts import MOST_GPUS, USAGE_BYTES
from tests.native.container import Container, library

TRY = """
cuda = Cuda(device=None)
print(cuda("cuInit", 0), cuda("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0), cuda.linear(1))
"""


def break_limits(container: Container, content: bytes | None) -> None:
    container.limits.unlink() if content is None else container.limits.write_bytes(content)


def break_usage(container: Container, content: bytes | None) -> None:
    container.usage.unlink() if content is None else container.usage.write_bytes(content)


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(
    ("how", "content"),
    [
        (break_limits, None),
        (break_limits, b""),
        (break_limits, b"gputile 2\nend\n"),
        (break_limits, b"\0" * 4096),
        (break_limits, b"gputile 1\nend\n"),
        (break_usage, None),
        (break_usage, b""),
        (break_usage, b"\xff" * USAGE_BYTES),
    ],
)
def test_fails_closed(one_gpu: Callable[..., Container], how: Callable[..., None], content: bytes | None) -> None:
    """What cannot be read enforces nothing, so nothing is given: NO_DEVICE, and a remedy."""
    container = one_gpu(256)
    how(container, content)
    assert container.python(TRY) == "100 100 100\n"
    said = container.messages(TRY)
    assert said.count("no GPU for this process") == 1
    assert "delete the pod" in said
    assert container.gpus.gpus()[0].peak == 0


@pytest.mark.requirement("M4")
def test_the_environment_chooses_no_allocation_where_there_is_one() -> None:
    """GPUTILE_DIRECTORY counts only where the agent mounted nothing: the library looks there first."""
    strings = library().read_bytes()
    assert b"/etc/gputile/allocation" in strings
    assert b"GPUTILE_LIMITS" not in strings


class ParsedGpu(ctypes.Structure):
    _fields_ = (("uuid", ctypes.c_char * 64), ("bytes", ctypes.c_uint64), ("percent", ctypes.c_uint))


class Parsed(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint),
        ("gpu", ParsedGpu * 16),
        ("overhead", ctypes.c_uint64),
        ("turn", ctypes.c_char * 108),
    )


@cache
def parser(directory: Path) -> ctypes.CDLL:
    source, path = SOURCES / "accounting" / "limits.c", directory / "liblimits.so"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *flags, f"-I{SOURCES}", "-o", path, source], check=True)
    loaded = ctypes.CDLL(str(path))
    loaded.gputile_limits_parse.restype = ctypes.c_char_p
    return loaded


@pytest.fixture(scope="module")
def parse(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Parsed | str]:
    loaded = parser(tmp_path_factory.mktemp("parser"))

    def read(content: bytes) -> Parsed | str:
        parsed = Parsed()
        wrong = loaded.gputile_limits_parse(content, ctypes.c_size_t(len(content)), ctypes.byref(parsed))
        return parsed if wrong is None else wrong.decode()

    return read


gpus = st.lists(
    st.builds(GpuLimit, st.from_regex(r"[!-~]{1,63}", fullmatch=True), st.integers(0, 1 << 26), st.integers(0, 100)),
    min_size=1,
    max_size=MOST_GPUS,
    unique_by=lambda gpu: gpu.uuid,
)


@pytest.mark.requirement("M4")
@given(known=gpus, overhead=st.none() | st.integers(0, 1 << 20), turn=st.sampled_from(["", "/run/gputile/turn"]))
def test_what_the_agent_writes_is_read(
    parse: Callable[[bytes], Parsed | str], known: list[GpuLimit], overhead: int | None, turn: str
) -> None:
    """The library reads just what the agent wrote."""
    found = parse(encode_limits(known, turn, overhead))
    assert isinstance(found, Parsed), found
    read = [GpuLimit(c.uuid.decode(), c.bytes >> 20, c.percent) for c in found.gpu[: found.count]]
    assert read == known
    assert found.turn.decode() == turn
    assert found.overhead == (1024 if overhead is None else overhead) << 20


@pytest.mark.requirement("M4")
@given(known=gpus, data=st.data())
def test_damaged_limits_are_refused(
    parse: Callable[[bytes], Parsed | str], known: list[GpuLimit], data: st.DataObject
) -> None:
    """A file that lacks a part, or has something that does not belong there, is refused with a reason."""
    whole = encode_limits(known)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(parse(whole[:cut]), str)
    at, odd = data.draw(st.integers(0, len(whole))), data.draw(st.sampled_from([b"\0", b"\xff", b"\t", b"\r", b"\n"]))
    assert isinstance(parse(whole[:at] + odd + whole[at:]), str)
    assert isinstance(parse(whole + data.draw(st.binary(min_size=1, max_size=40))), str)


@pytest.mark.requirement("M4")
def test_the_agent_refuses_what_the_library_would() -> None:
    """Limits that could not be read are not written."""
    for wrong in ([], [GpuLimit("two words", 1)], [GpuLimit("", 1)], [GpuLimit(f"GPU-{i}", 1) for i in range(17)]):
        with pytest.raises(ValueError, match="limits"):
            encode_limits(wrong)
