"""Of many objects the equal ones are told together, and only the first of the others."""

from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.status import shortened


def test_few_stay_one_by_one() -> None:
    few = [("a", "x"), ("b", "x")]
    assert shortened(few, 2) == (few, 0)


def test_of_many_equal_ones_are_one_and_the_rest_is_counted() -> None:
    many = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "x"), ("f", "z"), ("g", "z")]
    assert shortened(many, 2) == ([("a, c, d and 1 more", "x"), ("b", "y")], 2)
    assert shortened(many, 3) == ([("a, c, d and 1 more", "x"), ("b", "y"), ("f, g", "z")], 0)


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 5)), max_size=30), st.integers(1, 6))
def test_nobody_is_lost(told: list[tuple[str, int]], most: int) -> None:
    shown, left = shortened(told, most)
    assert len(shown) <= most
    assert left == (0 if len(told) <= most else sum(what not in {each for _, each in shown} for _, what in told))
