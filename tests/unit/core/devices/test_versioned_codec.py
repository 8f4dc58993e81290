"""Versioned texts are read as they were written, or refused with the rule that is broken."""

import msgspec
import pytest

from gputile.core.devices.versioned_codec import MOST_CHARACTERS, VersionedCodec


class Said(msgspec.Struct, rename="camel", omit_defaults=True):
    first_word: str = ""
    content: msgspec.Raw = msgspec.Raw()


class SaidError(ValueError):
    """The text is none."""


def trusted(said: Said) -> Said:
    if said.first_word == "no":
        raise ValueError("it contradicts itself")
    return said


CODEC = VersionedCodec(Said, 3, SaidError, trusted)
LONG = f'{{"version":3,"firstWord":"{"a" * MOST_CHARACTERS}"}}'


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (Said(), '{"version":3}'),
        (Said("yes"), '{"version":3,"firstWord":"yes"}'),
        (Said("yes", msgspec.Raw(b'{"a":[1]}')), '{"version":3,"firstWord":"yes","content":{"a":[1]}}'),
    ],
)
def test_a_text_begins_with_its_version(said: Said, text: str) -> None:
    assert CODEC.encode(said) == text
    assert CODEC.decode(text) == said
    assert CODEC.decode(text.encode()) == said


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"version":4}', "version 4 is not known; this gputile reads version 3"),
        ('{"version":3,"firstWord":"no"}', "it contradicts itself"),
        (LONG, f"it has {len(LONG)} characters, more than {MOST_CHARACTERS}"),
    ],
)
def test_a_refusal_names_the_rule(text: str, rule: str) -> None:
    with pytest.raises(SaidError) as refused:
        CODEC.decode(text)
    assert str(refused.value) == rule


def test_a_file_may_be_longer_than_an_annotation() -> None:
    assert VersionedCodec(Said, 3, SaidError, trusted, most=None).decode(LONG).first_word == "a" * MOST_CHARACTERS
