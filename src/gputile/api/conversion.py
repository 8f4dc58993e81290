"""Converts untrusted values to types, with error messages that name field, value and valid values.

msgspec decides whether a value fits a type, but its message is in the words of Python and has the
first mistake only. If a value that a user has written does not fit, it is compared with the type
again, and every mistake is reported.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from gputile.api.wording import (
    LONGEST,
    RULE,
    FieldMistake,
    at,
    below,
    kind_of,
    known,
    nearest,
    shown,
    supported,
    unsupported,
)

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
        found = [] if is_from_the_type else list(islice(mistakes(value, kind), MOST_FOUND))
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


# -- Comparing a value with its type


def mistakes(value: Any, kind: Any) -> Iterator[FieldMistake]:
    """Yield the fields of ``value`` that do not fit ``kind``, with the rule that they break."""
    yield from _check(_type_info(kind), value, "")


@functools.cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _check(kind: inspect.Type, value: Any, path: str) -> Iterator[FieldMistake]:
    if isinstance(kind, inspect.Metadata):
        for mistake in _check(kind.type, value, path):
            rule = (kind.extra or {}).get(RULE)
            yield (
                FieldMistake(path, f"{_what_it_is(value)} is not {rule}")
                if rule and mistake.path == path
                else mistake
            )
        return
    check = _CHECKS.get(type(kind))
    if check is not None:
        yield from check(kind, value, path)


def _struct(kind: inspect.StructType, value: Any, path: str) -> Iterator[FieldMistake]:
    if not isinstance(value, dict):
        yield _other_kind("a mapping", value, path)
        return
    fields = {field.encode_name: field for field in kind.fields}
    for name, item in value.items():
        if name in fields:
            yield from _check(fields[name].type, item, at(path, name))
        elif kind.forbid_unknown_fields:
            yield FieldMistake(
                at(path, name), f"unknown field{nearest(name, fields) or known(fields)}"
            )
    for name, field in fields.items():
        if field.required and name not in value:
            valid = _valid(field.type)
            yield FieldMistake(
                at(path, name), f"Required value: {supported(valid)}" if valid else "Required value"
            )


def _mapping(kind: inspect.DictType, value: Any, path: str) -> Iterator[FieldMistake]:
    if not isinstance(value, dict):
        yield _other_kind("a mapping", value, path)
        return
    for key, item in value.items():
        yield from _check(kind.key_type, key, at(path, key))
        yield from _check(kind.value_type, item, at(path, key))


def _list(kind: Any, value: Any, path: str) -> Iterator[FieldMistake]:
    if not isinstance(value, list | tuple):
        yield _other_kind("a list", value, path)
        return
    for i, item in enumerate(value):
        yield from _check(kind.item_type, item, f"{path}[{i}]")
    yield from _length(kind, value, path, "entries")


def _string(kind: inspect.StrType, value: Any, path: str) -> Iterator[FieldMistake]:
    if not isinstance(value, str):
        yield _other_kind("a string", value, path)
        return
    if kind.pattern is not None and re.search(kind.pattern, value) is None:
        yield FieldMistake(path, f"{shown(value)} does not match {kind.pattern}")
    yield from _length(kind, value, path, "characters")


def _boolean(_kind: inspect.BoolType, value: Any, path: str) -> Iterator[FieldMistake]:
    if not isinstance(value, bool):
        yield _other_kind("true or false", value, path)


def _number(kind: Any, value: Any, path: str) -> Iterator[FieldMistake]:
    whole = isinstance(kind, inspect.IntType)
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or (whole and value != value // 1):
        yield _other_kind("a whole number" if whole else "a number", value, path)
        return
    within = [
        (kind.ge is None or value >= kind.ge, f"{kind.ge} or more"),
        (kind.gt is None or value > kind.gt, f"more than {kind.gt}"),
        (kind.le is None or value <= kind.le, f"{kind.le} or less"),
        (kind.lt is None or value < kind.lt, f"less than {kind.lt}"),
    ]
    if not all(holds for holds, _ in within):
        both = kind.ge is not None and kind.le is not None
        rule = (
            f"{kind.ge} to {kind.le}" if both else next(rule for holds, rule in within if not holds)
        )
        yield FieldMistake(path, f"must be {rule}, is {str(value)[:LONGEST]}")


def _nothing(_kind: inspect.NoneType, value: Any, path: str) -> Iterator[FieldMistake]:
    if value is not None:
        yield _other_kind("nothing", value, path)


def _one_of(kind: Any, value: Any, path: str) -> Iterator[FieldMistake]:
    valid = _valid(kind)
    if value in valid and not isinstance(value, bool):
        return
    if isinstance(value, str):
        yield FieldMistake(path, unsupported(value, map(str, valid)))
    else:
        yield FieldMistake(path, f"Unsupported value: {_what_it_is(value)}: {supported(valid)}")


def _union(kind: inspect.UnionType, value: Any, path: str) -> Iterator[FieldMistake]:
    found = [(each, list(_check(each, value, path))) for each in kind.types]
    if not all(mistakes for _, mistakes in found):
        return
    # Report the mistakes for the member of the value's kind, which the author probably meant.
    members = [
        (each, mistakes) for each, mistakes in found if not isinstance(each, inspect.NoneType)
    ]
    likely = [
        mistakes for each, mistakes in members if len(members) == 1 or _is_of_kind(each, value)
    ]
    if likely:
        yield from likely[0]
        return
    wanted = [_kind_name(each) for each, _ in members]
    yield _other_kind(" or ".join(dict.fromkeys(wanted)), value, path)


_CHECKS: Final[dict[type[inspect.Type], Callable[[Any, Any, str], Iterator[FieldMistake]]]] = {
    inspect.StructType: _struct,
    inspect.DictType: _mapping,
    inspect.ListType: _list,
    inspect.VarTupleType: _list,
    inspect.StrType: _string,
    inspect.BoolType: _boolean,
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.NoneType: _nothing,
    inspect.LiteralType: _one_of,
    inspect.EnumType: _one_of,
    inspect.UnionType: _union,
}
_OF_KIND: Final[dict[type[inspect.Type], tuple[type, str]]] = {
    inspect.StructType: (dict, "a mapping"),
    inspect.DictType: (dict, "a mapping"),
    inspect.ListType: (list, "a list"),
    inspect.VarTupleType: (list, "a list"),
    inspect.StrType: (str, "a string"),
    inspect.LiteralType: (str, "a string"),
    inspect.EnumType: (str, "a string"),
    inspect.BoolType: (bool, "true or false"),
    inspect.IntType: (int, "a whole number"),
    inspect.FloatType: (float, "a number"),
}


def _is_of_kind(kind: inspect.Type, value: Any) -> bool:
    plain = kind.type if isinstance(kind, inspect.Metadata) else kind
    expected = _OF_KIND.get(type(plain))
    return expected is not None and type(value) is expected[0]


def _kind_name(kind: inspect.Type) -> str:
    plain = kind.type if isinstance(kind, inspect.Metadata) else kind
    return _OF_KIND.get(type(plain), (object, "something else"))[1]


def _length(kind: Any, value: Any, path: str, of: str) -> Iterator[FieldMistake]:
    if kind.max_length is not None and len(value) > kind.max_length:
        yield FieldMistake(path, f"has {len(value)} {of}, more than {kind.max_length}")
    if kind.min_length is not None and len(value) < kind.min_length:
        rule = (
            "must not be empty"
            if kind.min_length == 1
            else f"has {len(value)} {of}, fewer than {kind.min_length}"
        )
        yield FieldMistake(path, rule)


def _valid(kind: inspect.Type) -> list[Any]:
    """Return the values of an enum or Literal; [] for another type."""
    if isinstance(kind, inspect.Metadata):
        return _valid(kind.type)
    if isinstance(kind, inspect.LiteralType):
        return list(kind.values)
    if isinstance(kind, inspect.EnumType):
        return [each.value for each in kind.cls]
    return []


def _other_kind(wanted: str, value: Any, path: str) -> FieldMistake:
    quotes = wanted == "a string" and isinstance(value, int | float)
    return FieldMistake(
        path, f"must be {wanted}, is {_what_it_is(value)}{': write it in quotes' if quotes else ''}"
    )


def _what_it_is(value: Any) -> str:
    """Describe a YAML value: a scalar as it was written, otherwise its kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int | float):
        return f"the number {str(value)[:LONGEST]}"
    return kind_of(value)
