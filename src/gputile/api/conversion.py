"""Reads values that others wrote, and words errors: which field, what it is, what is valid.

msgspec decides whether a value fits a type, and says why not in Python's words. Only where it does not fit,
``type_check`` compares the value with the type anew and names every mistake.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from gputile.api.wording import FieldMistake, below

MOST_FOUND: Final = 20
_PART: Final = 1 << 16
_MOST_COMPARED: Final = 16_384  # items of JSON
# What msgspec says, and what people say.
_MISSING: Final = re.compile("Object missing required field `(.*)`")
_EXPECTED: Final = re.compile("Expected `([^`]*)`(?:, got `([^`]*)`)?")
_KINDS: Final = {
    "object": "a mapping",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "datetime": "a time",
}

T = TypeVar("T")


class WireObject(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """Common settings of the wire objects.

    A process keeps tens of thousands of them. They refer to nothing that refers back, so the cyclic garbage collector
    need not walk them: they are not tracked by it, nor are tuples of them, as lists would be.
    """


class ConversionError(ValueError):
    """A value does not fit; the text names every field, what it is, and what is valid."""

    def __init__(self, mistakes: Sequence[FieldMistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


def convert(value: Any, kind: type[T]) -> T:
    """Return ``value``, of a parser of YAML or JSON, as ``kind``.

    Raises:
        ConversionError: it does not fit.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise ConversionError(_mistakes(error, value, kind)) from error


def decode(text: bytes | str | msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    """Return what is in ``text``, JSON, as the decoder's kind.

    Raises:
        ConversionError: it is not JSON, or does not fit.
    """
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConversionError(mistakes_of_json(error, text, decoder.type)) from error


def mistakes_of_json(error: Exception, text: bytes | str | msgspec.Raw, kind: Any) -> list[FieldMistake]:
    """Return why ``text`` could not be decoded as ``kind``; ``error`` is what msgspec raised.

    JSON of very many items is not compared with ``kind``, since that holds up an event loop: the first mistake is told.
    """
    raw = text.encode(errors="replace") if isinstance(text, str) else bytes(text)
    if isinstance(error, msgspec.ValidationError) and has_more_items(raw, _MOST_COMPARED):
        return [_in_its_words(error)]
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        return [FieldMistake("", "it is nested too deep")]
    except UnicodeError:
        return [FieldMistake("", "it is not UTF-8 text")]
    except msgspec.MsgspecError as malformed:
        why = str(malformed).removeprefix("JSON is malformed: ")
        return [FieldMistake("", f"it is not JSON: {why}" if raw.strip() else "it is empty, and no JSON")]
    return _mistakes(error, value, kind)


def _mistakes(error: Exception, value: Any, kind: Any) -> list[FieldMistake]:
    """Return what is wrong; as far as msgspec tells it where the comparison finds nothing."""
    if isinstance(error, RecursionError):
        return [FieldMistake("", "it is nested too deep")]
    found: list[FieldMistake] = []
    if not isinstance(error.__cause__, ValueError):
        from gputile.api.type_check import mistakes  # costs what nobody needs whose values fit

        found = list(islice(mistakes(value, kind), MOST_FOUND))
    return found or [_in_its_words(error)]


def _in_its_words(error: Exception) -> FieldMistake:
    said, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if error.__cause__ is not None:
        return FieldMistake(path, str(error.__cause__))
    missing, expected = _MISSING.fullmatch(said), _EXPECTED.match(said)
    if missing is not None:
        return FieldMistake(below(path, missing[1]), "Required value")
    if expected is None:
        return FieldMistake(path, "its value is not one that may stand there")
    found = f", is {_KINDS[expected[2]]}" if expected[2] in _KINDS else ""
    return FieldMistake(
        path, f"must be {' or '.join(_KINDS.get(each, each) for each in expected[1].split(' | '))}{found}"
    )


def has_more_items(text: bytes, most: int) -> bool:
    """Return whether JSON has more than ``most`` objects, lists, and further fields and entries in them.

    That takes some milliseconds for megabytes. What is no JSON is judged by the same signs.
    """
    if not _reaches(text, most):
        return False
    # Some of the signs may be text. A backslash stands only in text, and before a quote it ends none.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * (most + 1):  # an item has two texts at most, its name and its value
        return True
    return _reaches(b"".join(plain.split(b'"')[::2]), most)


def _reaches(text: bytes, most: int) -> bool:
    """Return whether there are more than ``most`` signs of an item; no more of the text is looked at than tells."""
    if len(text) <= most:  # each sign is a byte: what kube-scheduler asks need not be counted
        return False
    count = 0
    for start in range(0, len(text), _PART):
        end = start + _PART
        count += text.count(b",", start, end) + text.count(b"{", start, end) + text.count(b"[", start, end)
        if count > most:
            return True
    return False


def timestamp_of(when: datetime) -> str:
    """Return a time to the second, as a Kubernetes ``Time`` is written; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp_of(when: datetime) -> str:
    """Return a time to the microsecond, as a Kubernetes ``MicroTime`` is written; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_seconds(timestamp: str | None) -> float:
    """Return a time as Unix time in seconds, 0 where there is none or it cannot be read."""
    if not timestamp:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
