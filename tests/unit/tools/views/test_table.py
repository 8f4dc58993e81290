"""Tables that fit the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.terminal_text import aligned, columns_of, first_rows, table

ROWS = [("POD", "NODE", "REASON"), ("web", "n-1", "it fits"), ("db", "-", "each GPU of the node has too little free")]


def test_without_a_width_each_row_is_a_line() -> None:
    assert table(ROWS) == (
        "POD  NODE  REASON\nweb  n-1   it fits\ndb   -     each GPU of the node has too little free\n"
    )


def test_long_cells_go_on_below_themselves() -> None:
    assert aligned(ROWS, 32) == [
        "POD  NODE  REASON",
        "web  n-1   it fits",
        "db   -     each GPU of the node",
        "           has too little free",
    ]


def test_long_cells_of_a_live_table_are_cut() -> None:
    assert aligned(ROWS, 24, tallest=2) == [
        "POD  NODE  REASON",
        "web  n-1   it fits",
        "db   -     each GPU of",
        "           the node h...",
    ]


@pytest.mark.parametrize(
    ("lines", "rows", "last"),
    [(1, 2, "POD"), (2, 2, "web"), (3, 2, "web"), (4, 3, "h..."), (40, 3, "h...")],
)
def test_as_many_rows_as_there_are_lines_for(lines: int, rows: int, last: str) -> None:
    text, count = first_rows(ROWS, 24, lines)
    assert count == rows
    assert len(text) <= lines
    assert last in text[-1]


def test_a_heading_alone_is_a_table_too() -> None:
    assert first_rows(ROWS[:1], None, 10) == (["POD  NODE  REASON"], 1)


def test_headings_stand_above_their_columns_beside_wide_characters() -> None:
    heading, row = aligned([("NAME", "NODE"), ("名前空間", "n")])
    assert columns_of(heading[: heading.index("NODE")]) == columns_of(row[: row.index("n")])


def test_cells_give_no_orders() -> None:
    assert "\x1b" not in table([("A",), ("\x1b[31mred",)])


CELLS = st.text(alphabet="ab 名\x1b[]", max_size=80)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[CELLS] * n), min_size=1, max_size=5)), st.integers(60, 200)
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = aligned(rows, width)
    assert all(columns_of(line) <= width for line in lines)
    assert len(lines) >= len(rows)
