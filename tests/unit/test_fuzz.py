"""Whatever the bytes, a parser of untrusted input raises its own errors only, in bounded memory."""

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.requirement("B1", "B2")

RUNS = 40
MOST_BYTES = 128 * 1024**2
NOT_TEXT = (b"\xff", b"\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800")
NUMBERS = (b"-1", b"1e400", b".nan", b"NaN", b"9" * 400, b"1_0", "\u0661".encode(), b"18446744073709551616", b"null")
SIGNS = (b"{", b"[", b'"', b"'", b",", b":", b"*", b"&a ", b"!!binary ", b"..", b"/../", b"\n", b"\r", b" ", b"---\n")
DEEP = (b"[" * 2000, b'{"a":' * 2000)
TOKENS = NOT_TEXT + NUMBERS + SIGNS + DEEP


@st.composite
def mutated(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Draw a seed, and some changes of it."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 40)))
        change = draw(st.sampled_from(("token", "cut", "bytes", "again", "end")))
        if change == "token":
            data[at:end] = draw(st.sampled_from(TOKENS))
        elif change == "cut":
            del data[at:end]
        elif change == "bytes":
            data[at:end] = draw(st.binary(max_size=8))
        elif change == "again":
            data[at:at] = data[at:end] * draw(st.integers(1, 50))
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(RUNS), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(choices=st.data())
def test_nothing_but_declared_errors_comes_out(name: str, choices: st.DataObject) -> None:
    target = TARGETS[name]
    data = choices.draw(mutated(target.seeds))
    tracemalloc.start()
    try:
        target.check(data)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"null", b'"\\ud800"'])
def test_what_is_nothing_at_all_is_an_error_too(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


def test_seeds_are_understood() -> None:
    """Else mutations would begin where nobody gets in."""
    refused = set()
    for name, target in TARGETS.items():
        for seed in target.seeds:
            try:
                target.run(seed)
            except target.allowed as error:
                refused.add((name, str(error)[:60]))
    assert {name for name, _ in refused} <= {"watch"}, refused
