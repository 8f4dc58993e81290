"""Text as a terminal shows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.terminal_text import aligned, columns_of, inert, padded, shortened, wrapped


def test_what_a_terminal_would_obey_is_shown_by_its_code() -> None:
    assert inert("a\x1b[2J\r\nb\x9b1m\u202ec\u2028\ud800") == r"a\x1b[2J\r\nb\x9b1m\u202ec\u2028\ud800"
    assert inert("[red]名 é") == "[red]名 é"


def test_wide_characters_take_two_columns() -> None:
    assert [columns_of(text) for text in ("ab", "名前", "e\u0301")] == [2, 4, 1]
    assert padded("名", 4) == "名  "
    assert wrapped("名前空間", 5) == ["名前", "空間"]


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("a name", 6, "a name"), ("a long name", 9, "a long..."), ("名前空間", 6, "名..."), ("long", 3, "lon")],
)
def test_what_has_no_room_ends_in_dots(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown


@given(st.text(alphabet="ab 名-", max_size=60), st.integers(2, 70))
def test_lines_are_no_wider_and_lose_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(columns_of(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrapped(text, columns_of(text)) == [text]


ROWS = [("POD", "NODE", "REASON"), ("web", "n-1", "it fits"), ("db", "-", "each GPU of the node has too little free")]


def test_long_cells_go_on_below_themselves() -> None:
    assert aligned(ROWS, 32) == [
        "POD  NODE  REASON",
        "web  n-1   it fits",
        "db   -     each GPU of the node",
        "           has too little free",
    ]


CELLS = st.text(alphabet="ab 名\x1b[]", max_size=80)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[CELLS] * n), min_size=1, max_size=5)), st.integers(60, 200)
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = aligned(rows, width)
    assert all(columns_of(line) <= width for line in lines)
    assert len(lines) >= len(rows)
    assert "\x1b" not in "".join(lines)
