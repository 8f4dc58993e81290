"""Converts untrusted values to types, with error messages that name field, value and valid values.

msgspec decides whether a value fits a type, but its message is in the words of Python and has the
first mistake only. If a value that a user has written does not fit, it is compared with the type
again, and every mistake is reported.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from gputile.api.type_mistakes import type_mistakes
from gputile.api.wording import FieldMistake, below

MOST_FOUND: Final = 20
_PART: Final = 1 << 16
# Patterns of msgspec's messages, and its names of types as named in YAML.
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

_TOO_DEEP: Final = FieldMistake("", "it is nested too deeply")

T = TypeVar("T")


class WireObject(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """Common settings of the wire objects.

    A process stores tens of thousands of them. They form no reference cycles, so they are excluded
    from the cyclic garbage collector (``gc=False``). Tuples of them are excluded too; lists would
    not be.
    """


class ConversionError(ValueError):
    """A value does not fit its type; the text names each wrong field, its value and valid ones."""

    def __init__(self, mistakes: Sequence[FieldMistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


def convert(value: Any, kind: type[T]) -> T:
    """Convert ``value``, as parsed from YAML or JSON, to ``kind``.

    Raises:
        ConversionError: it does not fit; all mistakes, up to ``MOST_FOUND``.
    """
    try:
        return msgspec.convert(value, kind)
    except RecursionError as error:
        raise ConversionError([_TOO_DEEP]) from error
    except (msgspec.ValidationError, OverflowError) as error:
        is_from_the_type = isinstance(error.__cause__, ValueError)
        found = [] if is_from_the_type else list(islice(type_mistakes(value, kind), MOST_FOUND))
        raise ConversionError(found or [_first_mistake(error)]) from error


def decode(text: bytes | str | msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode ``text``, which is JSON.

    Raises:
        ConversionError: it is not JSON, or does not fit; the first mistake.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise ConversionError([_first_mistake(error)]) from error
    except RecursionError as error:
        raise ConversionError([_TOO_DEEP]) from error
    except UnicodeError as error:
        raise ConversionError([FieldMistake("", "it is not UTF-8 text")]) from error
    except msgspec.MsgspecError as error:
        is_empty = not (text if isinstance(text, str) else bytes(text)).strip()
        why = str(error).removeprefix("JSON is malformed: ")
        raise ConversionError(
            [FieldMistake("", "it is empty, not JSON" if is_empty else f"it is not JSON: {why}")]
        ) from error


def _first_mistake(error: Exception) -> FieldMistake:
    said, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if error.__cause__ is not None:
        return FieldMistake(path, str(error.__cause__))
    missing, expected = _MISSING.fullmatch(said), _EXPECTED.match(said)
    if missing is not None:
        return FieldMistake(below(path, missing[1]), "Required value")
    if expected is None:
        return FieldMistake(path, "invalid value")
    kinds = " or ".join(_KINDS.get(each, each) for each in expected[1].split(" | "))
    found = f", is {_KINDS[expected[2]]}" if expected[2] in _KINDS else ""
    return FieldMistake(path, f"must be {kinds}{found}")


def has_more_items(text: bytes, most: int) -> bool:
    """Return whether JSON has more than ``most`` items: objects, lists, their fields and entries.

    It counts brackets and commas, which takes milliseconds for megabytes. Text that is not JSON is
    counted likewise.
    """
    if not _reaches(text, most):
        return False
    # Brackets and commas within strings do not count. A quote after a backslash does not end a
    # string.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # An item has at most two strings, its name and its value
    if plain.count(b'"') > 4 * (most + 1):
        return True
    return _reaches(b"".join(plain.split(b'"')[::2]), most)


def _reaches(text: bytes, most: int) -> bool:
    """Return whether there are more than ``most`` brackets and commas; stop counting there."""
    if len(text) <= most:  # so most requests of kube-scheduler need not be counted
        return False
    count = 0
    for start in range(0, len(text), _PART):
        end = start + _PART
        count += (
            text.count(b",", start, end)
            + text.count(b"{", start, end)
            + text.count(b"[", start, end)
        )
        if count > most:
            return True
    return False


def timestamp_of(when: datetime) -> str:
    """Format a time as a Kubernetes ``Time``, to the second; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp_of(when: datetime) -> str:
    """Format a time as a Kubernetes ``MicroTime``; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_seconds(timestamp: str | None) -> float:
    """Return a timestamp as Unix time in seconds; 0 if it is missing or invalid."""
    if not timestamp:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


# Kubernetes' TotalAnnotationSizeLimitB: no object can carry a longer one.
MOST_CHARACTERS = 256 * 1024

Value = TypeVar("Value", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    version: int


class VersionedCodec(Generic[Value]):
    """Encodes and decodes one kind of text.

    It has at most ``most`` characters or bytes; None is for any length. ``check`` raises ValueError
    for values that contradict themselves.
    """

    def __init__(
        self,
        kind: type[Value],
        version: int,
        error: type[ValueError],
        check: Callable[[Value], Value],
        *,
        most: int | None = MOST_CHARACTERS,
    ) -> None:
        self._version = version
        self._error = error
        self._check = check
        self._most = most
        self._head = msgspec.json.Decoder(_Versioned)
        self._body = msgspec.json.Decoder(kind)

    def encode(self, value: Value) -> str:
        """Return the text, which begins with the version."""
        rest = msgspec.json.encode(value).decode().removeprefix("{")
        return f'{{"version":{self._version}{"" if rest == "}" else ","}{rest}'

    def decode(self, text: str | bytes) -> Value:
        """Return the value in the text.

        Raises:
            ValueError: an ``error`` of the codec: the text is too long, is not JSON, has another
                version, has a field of a wrong type or out of range, or contradicts itself.
        """
        try:
            if self._most is not None and len(text) > self._most:
                raise self._error(f"it has {len(text)} characters, more than {self._most}")
            version = decode(text, self._head).version
            if version != self._version:
                raise self._error(
                    f"version {version} is not known; this gputile reads version {self._version}"
                )
            return self._check(decode(text, self._body))
        except ValueError as error:
            raise self._error(str(error)) from error
