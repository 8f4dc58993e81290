"""Tables that fit the terminal."""

from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.table import aligned, table
from gputile.tools.views.terminal_text import columns_of

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
