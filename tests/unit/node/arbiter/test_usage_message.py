"""What the arbiter reports of the time that was used never decreases, and what is no such line is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.arbiter.messages import LineError, Spent, Used, decode_line, encode_line
from gputile.node.arbiter.timeslice_scheduler import MS
from tests.unit.node.arbiter.machine import OneGpu

names = st.text(max_size=20)
times = st.integers(min_value=0, max_value=2**62)
used = st.dictionaries(names, st.dictionaries(names, st.builds(Spent, times, times), max_size=3), max_size=3)


@given(used)
def test_a_line_is_read_as_it_was_written(said: Used) -> None:
    line = encode_line(said)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_line(line, Used) == said


@pytest.mark.parametrize("line", [b"", b"[]", b'{"a": 1}', b'{"a": {"b": [-1, 0]}}', b'{"a": {"b": 1}}', b"[" * 5000])
def test_what_is_wrong(line: bytes) -> None:
    with pytest.raises(LineError):
        decode_line(line, Used)


def test_what_is_reported_never_decreases() -> None:
    """A turn is charged as it goes, and given back in part when it ends: a counter that falls would look restarted."""
    turns = OneGpu(30 * MS)
    turns.put("a", Share(ceiling=WHOLE // 2), 0)
    turns.want("a", 1, 0)
    turns.tick(20 * MS)
    assert turns.used("a") == 20 * MS
    turns.done(1, 1, 0, again=False, now=20 * MS)
    assert turns.accounts["a"].used == 5 * MS
    assert turns.used("a") == 20 * MS
