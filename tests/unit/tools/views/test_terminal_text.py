"""Text as a terminal shows it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.terminal_text import columns_of, inert, padded, shortened, wrapped


def test_what_a_terminal_would_obey_is_shown_by_its_code() -> None:
    assert inert("a\x1b[2J\r\nb\x9b1m\u202ec\u2028\ud800") == r"a\x1b[2J\r\nb\x9b1m\u202ec\u2028\ud800"
    assert inert("[red]名 é") == "[red]名 é"


@given(st.text())
def test_nothing_is_left_to_be_obeyed(text: str) -> None:
    assert not [each for each in inert(text) if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


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


def test_words_stay_whole_where_they_can() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("a extraordinarily b", 6) == ["a", "extrao", "rdinar", "ily b"]
