"""Values that do not fit: which field, what it is, what is valid, and none of the decoder's own words."""

import json
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.conversion import (
    ConversionError,
    convert,
    decode,
    has_more_items,
    micro_timestamp_of,
    timestamp_of,
    unix_seconds,
)
from gputile.api.type_mistakes import type_mistakes
from gputile.api.wording import RULE


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Inner(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    how_many: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    memory: str = ""
    ratio: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Outer(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    provider: Literal["eks", "aks", "gke"]
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", extra={RULE: "lower-case letters"})] = "a"
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=4)] = "a"
    colour: Colour | None = None
    inner: Inner | list[Inner] = []
    labels: dict[str, str] = {}
    on: bool = False
    many: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({}, 'provider: Required value: supported values: "aks", "eks", "gke"'),
        (
            {"provider": "gka"},
            'provider: Unsupported value: "gka": supported values: "aks", "eks", "gke"; did you mean',
        ),
        ({"provider": 3}, 'provider: Unsupported value: the number 3: supported values: "aks", "eks", "gke"'),
        ({"providr": "eks"}, "providr: unknown field; did you mean provider?"),
        (
            {"zzz": 1},
            "zzz: unknown field; known are provider, name, title, colour, inner, labels, on, many",
        ),
        ({"inner": {"howManny": 3}}, "inner.howManny: unknown field; did you mean howMany?"),
        ({"inner": [{}, {"howMany": 0}]}, "inner[1].howMany: must be 1 to 64, is 0"),
        ({"inner": {"howMany": 1.5}}, "inner.howMany: must be a whole number, is the number 1.5"),
        ({"inner": {"howMany": True}}, "inner.howMany: must be a whole number, is true"),
        ({"inner": {"memory": 15}}, "inner.memory: must be a string, is the number 15: write it in quotes"),
        ({"inner": {"memory": ["x"]}}, "inner.memory: must be a string, is a list"),
        ({"inner": {"ratio": -0.5}}, "inner.ratio: must be 0 or more, is -0.5"),
        ({"inner": 5}, "inner: must be a mapping or a list, is the number 5"),
        ({"name": "A_b"}, 'name: "A_b" is not lower-case letters'),
        ({"name": 5}, "name: the number 5 is not lower-case letters"),
        ({"title": ""}, "title: must not be empty"),
        ({"title": "abcde"}, "title: has 5 characters, more than 4"),
        ({"colour": "rad"}, 'colour: Unsupported value: "rad": supported values: "red", "green"; did you mean red?'),
        ({"labels": {"a.io/b": 1}}, 'labels["a.io/b"]: must be a string, is the number 1: write it in quotes'),
        ({"labels": []}, "labels: must be a mapping, is a list"),
        ({"on": "yes"}, 'on: must be true or false, is "yes"'),
        ({"many": ["a", 1]}, "many[1]: must be a string, is the number 1: write it in quotes"),
        ([], "must be a mapping, is a list"),
        ("text", 'must be a mapping, is "text"'),
        (None, "must be a mapping, is nothing"),
    ],
)
def test_a_mistake_is_named_in_words_for_people(written: Any, says: str) -> None:
    with pytest.raises(ConversionError) as refused:
        convert(written, Outer)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({}, "provider: Required value"),
        ({"provider": "eks", "title": 5}, "title: must be a string, is a whole number"),
        ({"provider": "eks", "inner": 5}, "inner: must be a mapping or a list, is a whole number"),
    ],
)
def test_json_names_its_first_mistake(written: Any, says: str) -> None:
    with pytest.raises(ConversionError) as refused:
        decode(msgspec.json.encode(written), msgspec.json.Decoder(Outer))
    assert str(refused.value) == says


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConversionError) as refused:
        convert({"on": 1, "labels": 2, "provider": "x"}, Outer)
    assert [mistake.path for mistake in refused.value.mistakes] == ["on", "labels", "provider"]
    with pytest.raises(ConversionError) as many:
        convert({"provider": "eks", "many": [1] * 100}, Outer)
    assert len(many.value.mistakes) == 20


def test_what_is_no_json_says_so() -> None:
    for text, says in (
        (b"{", "it is not JSON: Input data was truncated"),
        (b" ", "it is empty, not JSON"),
        (b"x", r"it is not JSON: invalid character \(byte 0\)"),
        (b"01", "it is not JSON"),
        (b'{"name": "\xff"}', "UTF-8"),
    ):
        with pytest.raises(ConversionError, match=says) as refused:
            decode(text, msgspec.json.Decoder(Outer))
        assert "malformed" not in str(refused.value)
    with pytest.raises(ConversionError, match="nested too deep"):
        decode(b"[" * 10**4, msgspec.json.Decoder(Any))


class Checked(msgspec.Struct):
    """Checks itself."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, more than high, {self.high}")


def test_what_a_type_says_itself_stays() -> None:
    with pytest.raises(ConversionError, match=r"^low is 2, more than high, 1$"):
        convert({"low": 2, "high": 1}, Checked)
    with pytest.raises(ConversionError, match=r"^checked: low is 2, more than high, 1$"):
        convert({"checked": {"low": 2, "high": 1}}, msgspec.defstruct("Holder", [("checked", Checked)]))


NAMES = ["provider", "name", "title", "colour", "inner", "labels", "on", "many", "howMany", "memory", "ratio"]
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 70), st.floats(-1, 2), st.sampled_from(["", "a", "eks", "red", "X"])
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_it_agrees_with_msgspec(written: Any) -> None:
    try:
        msgspec.convert(written, Outer)
        fits = True
    except msgspec.ValidationError:
        fits = False
    assert fits == (not list(type_mistakes(written, Outer)))


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


EASTERN = datetime(2026, 1, 2, 5, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))


def test_a_time_is_written_in_utc() -> None:
    assert timestamp_of(EASTERN) == "2026-01-02T03:04:05Z"
    assert micro_timestamp_of(EASTERN) == "2026-01-02T03:04:05.678901Z"


def test_what_is_written_is_read_as_the_same_moment() -> None:
    assert unix_seconds(micro_timestamp_of(EASTERN)) == EASTERN.timestamp()
    assert unix_seconds(timestamp_of(EASTERN)) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_0(text: str | None) -> None:
    assert unix_seconds(text) == 0
