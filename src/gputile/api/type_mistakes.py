"""Finds every mistake in a value that does not fit its type, and words it for authors of YAML."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import inspect

from gputile.api.wording import (
    LONGEST,
    RULE,
    FieldMistake,
    at,
    kind_of,
    known,
    nearest,
    shown,
    supported,
    unsupported,
)


def type_mistakes(value: Any, kind: Any) -> Iterator[FieldMistake]:
    """Yield each field of ``value`` that does not fit the type ``kind``, and the broken rule."""
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
    # Report only the mistakes against the member of the value's kind. The author probably meant it.
    members = [
        (each, mistakes) for each, mistakes in found if not isinstance(each, inspect.NoneType)
    ]
    likely = [
        mistakes
        for each, mistakes in members
        if len(members) == 1 or type(value) is _python_type(each)[0]
    ]
    if likely:
        yield from likely[0]
        return
    wanted = [_python_type(each)[1] for each, _ in members]
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


def _python_type(kind: inspect.Type) -> tuple[type, str]:
    """Return the type of the kind's values, and its name in messages."""
    plain = kind.type if isinstance(kind, inspect.Metadata) else kind
    return _OF_KIND.get(type(plain), (object, "something else"))


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
    """Return the values of an enum or Literal, or [] for another type."""
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
    """Return a scalar of YAML as it was written, or the kind of another value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int | float):
        return f"the number {str(value)[:LONGEST]}"
    return kind_of(value)
