"""A watch's bytes become lines, however they are cut into chunks."""

import time

from hypothesis import given
from hypothesis import strategies as st

from gputile.kube.reflector import LineSplitter


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"a", b"\n"))))
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    whole, _, _ = b"".join(chunks).rpartition(b"\n")
    assert lines == [line for line in whole.split(b"\n") if line]


def test_a_long_line_in_small_chunks_costs_time_in_proportion() -> None:
    def cost(chunks: int) -> float:
        splitter = LineSplitter()
        start = time.process_time()
        for _ in range(chunks):
            splitter.feed(b"x" * 64)
        assert len(splitter.feed(b"\n")[0]) == chunks * 64
        return time.process_time() - start

    cost(1_000)
    assert cost(200_000) < 60 * cost(20_000)
