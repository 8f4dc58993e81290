"""What the arbiter says of the time that was used adds up over arbiters, and what is no such line is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.arbiter.agent_messages import LineError, Spent, Totals, Used, decode_line, encode_line

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


def test_totals_go_on_over_arbiters_and_never_back() -> None:
    totals = Totals()
    totals.begin()
    totals.add({"/a": {"GPU-0": Spent(5, 1)}, "/b": {"GPU-0": Spent(2, 9)}})
    # A turn's charge was taken back in part.
    totals.add({"/a": {"GPU-0": Spent(4, 2)}, "/b": {"GPU-0": Spent(3, 9)}})
    assert totals.spent() == {("/a", "GPU-0"): Spent(5, 2), ("/b", "GPU-0"): Spent(3, 9)}
    totals.begin()
    assert totals.spent() == {("/a", "GPU-0"): Spent(5, 2), ("/b", "GPU-0"): Spent(3, 9)}
    totals.add({"/a": {"GPU-0": Spent(1, 1)}})  # the container of /b has gone meanwhile
    assert totals.spent() == {("/a", "GPU-0"): Spent(6, 3)}
