"""Records whose keys got better names are written under both."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from gputile.api.old_json_keys import OldKeys, with_old_keys


class Part(OldKeys, frozen=True, rename="camel"):
    old_keys: ClassVar[Mapping[str, str]] = {"howMany": "how_many", "atAll": "at_all"}
    how_many: int
    at_all: int | UnsetType = UNSET


class Plain(msgspec.Struct, frozen=True, rename="camel"):
    as_it_was: int


class Whole(OldKeys, frozen=True, rename="camel"):
    parts: list[Part]
    plain: Plain


def test_a_renamed_key_is_there_twice_wherever_it_stands() -> None:
    whole = Whole([Part(1), Part(2, 3)], Plain(4))
    for written in ([whole], (whole,)):
        assert msgspec.json.decode(msgspec.json.encode(with_old_keys(written))) == [
            {
                "parts": [{"howMany": 1, "how_many": 1}, {"howMany": 2, "atAll": 3, "how_many": 2, "at_all": 3}],
                "plain": {"asItWas": 4},
            }
        ]


def test_what_has_no_old_keys_is_left_to_the_encoder() -> None:
    plain = Plain(1)
    assert with_old_keys(plain) is plain
    assert with_old_keys({"a": plain}) == {"a": plain}
