"""Parses untrusted YAML and JSON into plain Python values.

PyYAML parses the text. Scalars are resolved as in Kubernetes (sigs.k8s.io/yaml). A document is
refused if it has duplicate keys, deep nesting, or aliases that expand to gigabytes. The error names
the line.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, Final

import yaml

DEEPEST = 100
MOST_VALUES = 5_000_000
_SHALLOW: Final = 10_000  # characters; a shorter text cannot nest deep enough to overflow the stack
_TOO_DEEP: Final = f"it is nested deeper than {DEEPEST} levels"
_OBJECT: Final = re.compile(r"\s*(?={)")
_DOCUMENT: Final = re.compile(r"^(?=---)", re.MULTILINE)

_TRUE: Final = frozenset({"y", "yes", "true", "on"})
_FALSE: Final = frozenset({"n", "no", "false", "off"})
_BOOLEAN: Final = "|".join(
    form for word in _TRUE | _FALSE for form in (word, word.capitalize(), word.upper())
)
_INTEGER: Final = (
    r"[-+]?(0[bB][01][01_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*|0[oO]?[0-7][0-7_]*|0|[1-9][0-9_]*)"
)
_FLOAT: Final = r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
_INFINITE: Final = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"


class DocumentError(ValueError):
    """The text is not valid YAML or JSON. The message gives the position and the reason."""


def load_documents(text: str) -> Iterator[Any]:
    """Yield the value of each document in ``text``. An empty document has the value None.

    As with kubectl, a line that begins with "---" begins a document, and JSON objects may follow
    each other.

    Raises:
        DocumentError: the text cannot be parsed, or is too large or too deep for a manifest.
    """
    text = text.removeprefix("\ufeff")
    end = 0
    for value, object_end in _json_objects(text):
        yield value
        end = object_end
    if end and not re.match(r"\s*(\Z|^---)", text[end:], re.MULTILINE):
        raise DocumentError(
            f"line {_line(text, end)}: only another JSON object or a line of --- may follow a JSON "
            f"object"
        )
    before = _line(text, end) - 1
    for document in _DOCUMENT.split(text[end:]):
        value = _load_yaml(document, before)
        if value is not None or document.startswith("---"):
            yield value
        before += document.count("\n")


def load_document(content: str | bytes) -> Any:
    """Return the value of the only document in ``content``. An empty file has the value None.

    Raises:
        DocumentError: the content cannot be parsed, is not UTF-8 text, or has several documents.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(why_no_text(error)) from error
    found = list(islice(load_documents(text), 2))
    if len(found) > 1:
        raise DocumentError("it holds several documents, where one is expected")
    return found[0] if found else None


def why_no_text(error: UnicodeDecodeError, encoding: str = "UTF-8") -> str:
    """Return the reason why the content is not text in an encoding."""
    if error.object.startswith(b"\x1f\x8b"):
        return "it is compressed by gzip: unpack it first"
    return f"it is not {encoding} text: {error.reason} at byte {error.start}"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


# -- JSON
def _json_objects(text: str) -> Iterator[tuple[Any, int]]:
    """Yield each JSON object at the beginning of ``text``, with the position of its end."""
    end, has_surrogates = 0, "\\ud" in text.lower()
    while found := _OBJECT.match(text, end):
        try:
            value, end = _JSON.raw_decode(text, found.end())
            if has_surrogates:
                json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError:
            return  # the text may be YAML in flow style
        except UnicodeEncodeError:
            raise DocumentError(
                "an escape such as \\ud800 without its other half is not text"
            ) from None
        except RecursionError:
            raise DocumentError(_TOO_DEEP) from None
        except ValueError as error:
            raise DocumentError(str(error)) from None
        _refuse_deep(value)
        yield value, end


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        outer = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [inner for values in outer for inner in values]
    if level:
        raise DocumentError(_TOO_DEEP)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} is written twice in one mapping")
    return mapping


def _number(text: str) -> int | float:
    """Parse a number as Go's JSON does. A number without a fraction becomes an integer."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_constant=_number, parse_float=_number, parse_int=int
)


# -- YAML
class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def add_kubernetes_scalars(class_: type[yaml.resolver.BaseResolver]) -> None:
    """Make a loader or dumper resolve plain scalars as Kubernetes does."""
    for tag, form, beginnings in (
        ("null", "|~|null|Null|NULL", ["", *"~nN"]),
        ("bool", _BOOLEAN, list("yYnNtTfFoO")),
        ("int", _INTEGER, list("-+0123456789")),
        ("float", f"{_FLOAT}|{_INFINITE}", list("-+.0123456789")),
        ("merge", "<<", ["<"]),
    ):
        class_.add_implicit_resolver(
            f"tag:yaml.org,2002:{tag}", re.compile(rf"({form})\Z"), beginnings
        )


add_kubernetes_scalars(_Loader)


def _load_yaml(text: str, before: int) -> Any:
    """Return the value of one document. ``before`` is the number of lines before the document."""
    try:
        if len(text) > _SHALLOW:
            _refuse_deep_events(text)
        node = yaml.compose(text, _Loader)
        return None if node is None else _value(node, 0, count())
    except yaml.MarkedYAMLError as error:
        at: Any = error.problem_mark
        raise DocumentError(
            f"line {before + at.line + 1}, column {at.column + 1}: {error.problem}"
        ) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise DocumentError(" ".join(str(error).split())) from error


def _refuse_deep_events(text: str) -> None:
    """Refuse deep nesting before the nodes are composed, because libyaml's composer recurses."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise _error(_TOO_DEEP, event)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _value(node: yaml.Node, depth: int, values: "count[int]") -> Any:
    """Return the value of a node. ``values`` counts all values, once for each use of an alias."""
    if next(values) > MOST_VALUES:
        raise _error(f"it has more than {MOST_VALUES} values, with aliases expanded", node)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if depth == DEEPEST:
        raise _error(_TOO_DEEP, node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, depth + 1, values) for each in node.value]
    mapping: dict[str, Any] = {}
    merged: list[Any] = []
    for key_node, value_node in node.value:
        value = _value(value_node, depth + 1, values)
        if key_node.tag == "tag:yaml.org,2002:merge":
            merged += value if isinstance(value, list) else [value]
            continue
        key = _key(key_node)
        if key in mapping:
            raise _error(f"the key {key[:80]!r} is written twice in one mapping", key_node)
        mapping[key] = value
    for each in merged:
        if not isinstance(each, dict):
            raise _error("<< takes a mapping, or a list of mappings", node)
        mapping = each | mapping
    return mapping


def _key(node: yaml.Node) -> str:
    key = _scalar(node) if isinstance(node, yaml.ScalarNode) else None
    if isinstance(key, bool):
        return str(key).lower()
    if not isinstance(key, str | int):
        raise _error("a key must be a string: write it in quotes", node)
    return str(key)


def _scalar(node: yaml.ScalarNode) -> bool | int | float | str | None:
    read = _SCALARS.get(node.tag, str)
    try:
        return read(node.value)
    except ValueError as error:
        raise _error(str(error), node) from error


def _yaml_integer(text: str) -> int:
    text = text.replace("_", "")
    digits = text.lstrip("+-")
    return int(text, 8 if digits.startswith("0") and digits.isdecimal() else 0)


def _yaml_float(text: str) -> int | float | str:
    if re.fullmatch(_INFINITE, text):
        raise ValueError(f"{text} is not a finite number")
    text = text.replace("_", "")
    return text if math.isinf(float(text)) else _number(text)  # a hash such as 12e45678 stays text


_SCALARS: Final[dict[str, Callable[[str], bool | int | float | str | None]]] = {
    "tag:yaml.org,2002:null": lambda _: None,
    "tag:yaml.org,2002:bool": lambda text: text.lower() in _TRUE,
    "tag:yaml.org,2002:int": _yaml_integer,
    "tag:yaml.org,2002:float": _yaml_float,
}


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
