"""Converts untrusted JSON and YAML to types, and explains every mistake to the user.

msgspec decides whether a value fits a type. Its error names Python's types, and only the first
mistake. So if a value does not fit, ``convert`` compares it with the type again
(``type_mistakes``), and reports every mistake in the words of YAML.
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
# Patterns of msgspec's messages, and the YAML words for msgspec's names of types.
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
    """The base of the objects that are encoded as JSON.

    A process stores tens of thousands of these objects. Objects without reference cycles need no
    cyclic garbage collector (``gc=False``). Their fields are tuples where possible, because the
    garbage collector also skips tuples of such objects, but not lists.
    """


class ConversionError(ValueError):
    """A value does not fit its type. The text names the wrong fields and their valid values."""

    def __init__(self, mistakes: Sequence[FieldMistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


def convert(value: Any, kind: type[T]) -> T:
    """Convert ``value``, as parsed from YAML or JSON, to ``kind``.

    Raises ConversionError if the value does not fit. The error has the first ``MOST_FOUND``
    mistakes.
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
    """Decode JSON.

    Raises ConversionError if the text is not JSON, or does not fit. The error has the first
    mistake.
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
    """Return whether JSON has more than ``most`` objects, lists, fields and list entries in all.

    The brackets and commas of ``text`` are counted, which takes milliseconds for megabytes. The
    text is not parsed, and so need not be valid JSON.
    """
    if not _reaches(text, most):
        return False
    # Remove strings, whose brackets and commas do not count. An escaped quote ends no string.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # An item has at most two strings: its name and its value.
    if plain.count(b'"') > 4 * (most + 1):
        return True
    return _reaches(b"".join(plain.split(b'"')[::2]), most)


def _reaches(text: bytes, most: int) -> bool:
    """Return whether ``text`` has more than ``most`` opening brackets and commas."""
    if len(text) <= most:  # the usual request of kube-scheduler
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
    """Format ``when``, which must have a time zone, as a Kubernetes ``Time`` in full seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp_of(when: datetime) -> str:
    """Format ``when``, which must have a time zone, as a Kubernetes ``MicroTime``."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_seconds(timestamp: str | None) -> float:
    """Return a timestamp as Unix time in seconds, or 0 if it is missing or invalid."""
    if not timestamp:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


# Kubernetes' TotalAnnotationSizeLimitB: no object can have a longer annotation.
MOST_CHARACTERS = 256 * 1024

Value = TypeVar("Value", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    version: int


class VersionedCodec(Generic[Value]):
    """Encodes a value of type ``kind`` as JSON with a format version, and decodes the JSON.

    ``decode`` refuses texts of more than ``most`` characters or bytes, unless ``most`` is None.
    ``check`` returns the decoded value, or raises ValueError if its fields contradict each other.
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
        """Return the JSON text, whose first field is the version."""
        rest = msgspec.json.encode(value).decode().removeprefix("{")
        return f'{{"version":{self._version}{"" if rest == "}" else ","}{rest}'

    def decode(self, text: str | bytes) -> Value:
        """Return the value that the text encodes.

        Raises ValueError if the text is too long, is not JSON, has another version, does not fit
        the type, or contradicts itself. The exception is the codec's ``error``.
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
