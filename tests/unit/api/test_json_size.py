"""How much JSON says, counted without decoding it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.json_size import has_more_items

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('",\\{[ab', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",\\{[ab', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def items(value: Any) -> int:
    """Return how many objects and lists there are, and further entries in them."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(0, len(inner) - 1) + sum(map(items, inner))


@given(JSON, st.integers(0, 40))
def test_signs_in_text_count_for_nothing(value: Any, most: int) -> None:
    assert has_more_items(json.dumps(value).encode(), most) is (items(value) > most)
    assert has_more_items(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), most) is (
        items(value) > most
    )


@pytest.mark.parametrize("long", [",", "\\,", '"', '\\",', "{["])
def test_long_text_is_one_item(long: str) -> None:
    assert not has_more_items(json.dumps({"a": long * 300_000}).encode(), 1)


def test_what_is_no_json_is_judged_too() -> None:
    assert has_more_items(b"[" * 100, 99)
    assert not has_more_items(b'\\"\x00\xff', 0)
