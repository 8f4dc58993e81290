"""Lists the fields of the configuration, from the types that decode it."""

from collections.abc import Iterator

import msgspec
from docs.generator.tables import code, table
from msgspec.inspect import (
    BoolType,
    DictType,
    EnumType,
    Field,
    IntType,
    ListType,
    LiteralType,
    Metadata,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from gputile.api.config.v1alpha1 import Configuration


def render() -> str:
    """Return the table of all fields."""
    rows = [(code(path), kind, code(default), text) for path, kind, default, text in fields()]
    return table(("field", "type", "default", "meaning"), rows)


def fields() -> Iterator[tuple[str, str, str, str]]:
    """Yield the path, the type, the default in YAML, and the meaning of each field."""
    yield from _fields("", type_info(Configuration))


def _fields(prefix: str, struct: Type) -> Iterator[tuple[str, str, str, str]]:
    if not isinstance(struct, StructType):
        raise TypeError(f"{struct} has no fields")
    for field in struct.fields:
        path = f"{prefix}{field.encode_name}"
        kind, text = _described(field.type)
        if isinstance(kind, StructType):
            yield from _fields(f"{path}.", kind)
        elif isinstance(kind, VarTupleType) and isinstance(kind.item_type, StructType):
            yield path, "list", _default(field), text
            yield from _fields(f"{path}[].", kind.item_type)
        else:
            yield path, _type(kind), _default(field), text


def _described(kind: Type) -> tuple[Type, str]:
    if isinstance(kind, Metadata):
        return kind.type, (kind.extra_json_schema or {}).get("description", "")
    return kind, ""


def _type(kind: Type) -> str:
    match kind:
        case LiteralType(values=values):
            return ", ".join(code(str(value)) for value in values)
        case DictType(value_type=value):
            return f"map of text to {_type(value)}"
        case ListType(item_type=item) | VarTupleType(item_type=item):
            return f"list of {_type(item)}"
        case EnumType(cls=enum):
            return ", ".join(code(str(each.value)) for each in enum)
        case BoolType():
            return "boolean"
        case IntType():
            return "integer"
        case StrType():
            return "text"
        case UnionType(types=types):
            return " or ".join(map(_type, types))
        case Metadata(type=inner):
            return _type(inner)
    raise TypeError(f"no word for {kind}")


def _default(field: Field) -> str:
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else ""
    return (
        msgspec.json.encode(default).decode().strip('"') if default not in ((), [], {}, "") else ""
    )
