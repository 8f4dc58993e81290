"""YAML and JSON text to plain Python values, for text that nobody has checked.

Kubernetes' rules where they differ from PyYAML's: keys are strings, timestamps and sexagesimal numbers stay text, and
"1e3", "08", "0o17" and "y" are numbers and a bool. A number without a fraction is an integer, however it is written.
A key written twice is an error. The values are built from parser events on a stack of our own: nesting is bounded,
and an alias counts as large as what it stands for, so that a few lines cannot become gigabytes.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import yaml
from yaml import CSafeLoader

DEEPEST = 100
MOST_VALUES = 5_000_000
_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
_TAG = "tag:yaml.org,2002:"
_BOOLS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False, "y": True, "n": False}
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_INFINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER: Final = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", re.ASCII)
_DECIMAL: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WIDEST: Final = 64  # bits of an integer in another base than ten
_EXACT: Final = 1e21  # Kubernetes writes larger numbers with an exponent, which is no integer's form


class DocumentError(ValueError):
    """The text is not YAML or JSON of the kind that manifests are written in; says where and why."""


def load_documents(text: str) -> Iterator[Any]:
    """Yield the value of each document in ``text``; an empty document is None.

    Raises:
        DocumentError: the text cannot be read, or is larger or deeper than a manifest may be.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield _load_json(text)
            return
        except json.JSONDecodeError:
            pass  # YAML in flow style begins with a bracket too
    yield from _load_yaml(text)


def load_document(content: str | bytes) -> Any:
    """Return the value of the one document in ``content``; an empty file is None.

    Raises:
        DocumentError: as of ``load_documents``, or it is no UTF-8 text, or there are several documents.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not UTF-8 text: {error.reason} at byte {error.start}") from error
    found = list(islice(load_documents(text), 2))
    if len(found) > 1:
        raise DocumentError("it holds several documents, where one is expected")
    value = found[0] if found else None
    if _is_deep(value):
        raise DocumentError(_TOO_DEEP)
    return value


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested deeper than YAML may be: the parser of JSON bounds nothing."""
    level = [value]
    for _ in range(DEEPEST):
        level = [each for outer in level if isinstance(outer, dict | list) for each in _inner(outer)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _inner(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _load_json(text: str) -> Any:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant,
            parse_float=lambda each: _whole(float(each)),
        )
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # an escape may spell half a character
        return value
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise DocumentError("an escape such as \\ud800 without its other half is not text") from None
    except ValueError as error:
        raise error if isinstance(error, DocumentError) else DocumentError(str(error)) from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise DocumentError(f"the key {twice[:80]!r} is written twice in one mapping")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"{name} is not JSON")


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that is being read. ``size`` counts its values, those of aliases included."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    size: int = 1
    key: str | None = None
    merging: bool = False
    merges: list[Any] = field(default_factory=list)


def _load_yaml(text: str) -> Iterator[Any]:
    try:
        loader = CSafeLoader(text)
        try:
            yield from _documents(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise DocumentError(f"{line}{error.problem}") from error
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, int) else ord(error.character)
        raise DocumentError(f"the character U+{character:04X} is not allowed") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise DocumentError(str(error).replace("\n", " ")) from error


def _documents(loader: CSafeLoader) -> Iterator[Any]:
    builder = _Builder()
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.DocumentStartEvent):
            builder.begin()
        elif isinstance(event, yaml.DocumentEndEvent):
            yield builder.result
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            try:
                builder.take(event)
            except DocumentError as error:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise DocumentError(f"line {line}: {error}") from error.__cause__


class _Builder:
    """Builds one document's value from its events."""

    def __init__(self) -> None:
        self._total = 0
        self.begin()

    def begin(self) -> None:
        """Forget the document before: anchors hold within one document."""
        self.result: Any = None
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}

    def take(self, event: yaml.Event) -> None:
        """Take the next event of the document."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise DocumentError(f"the alias *{event.anchor} stands for nothing that is complete before it")
            self._put(*self._anchors[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            is_map = isinstance(event, yaml.MappingStartEvent)
            if event.tag not in (None, "!", _TAG + ("map" if is_map else "seq")):
                raise DocumentError(f"the tag {event.tag} has no meaning in a manifest")
            if self._needs_key():
                raise DocumentError("a key must be a string")
            if len(self._stack) == DEEPEST:
                raise DocumentError(_TOO_DEEP)
            self._stack.append(_Frame({} if is_map else [], event.anchor))
        else:
            frame = self._stack.pop()
            _merge(frame)
            self._put(frame.value, frame.size)
            self._remember(frame.anchor, frame.value, frame.size)

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = _TAG + (_plain_tag(event.value) if event.implicit[0] else "str")
        if self._needs_key():
            self._take_key(event.value, tag)
            return
        value = _scalar(event.value, tag.removeprefix(_TAG))
        self._put(value, 1)
        self._remember(event.anchor, value, 1)

    def _needs_key(self) -> bool:
        if not self._stack:
            return False
        frame = self._stack[-1]
        return isinstance(frame.value, dict) and frame.key is None and not frame.merging

    def _take_key(self, text: str, tag: str) -> None:
        frame = self._stack[-1]
        if tag == f"{_TAG}merge":
            frame.merging = True
            return
        if tag == f"{_TAG}null":
            raise DocumentError("a key must be a string, this one is empty")
        value = _scalar(text, tag.removeprefix(_TAG))
        key = str(value).lower() if isinstance(value, bool) else str(value)
        if key in frame.value:
            raise DocumentError(f"the key {key[:80]!r} is written twice in one mapping")
        frame.key = key

    def _put(self, value: Any, size: int) -> None:
        self._total += size
        if self._total > MOST_VALUES:
            raise DocumentError(f"it has more than {MOST_VALUES} values, aliases counted as what they stand for")
        if not self._stack:
            self.result = value
            return
        frame = self._stack[-1]
        frame.size += size
        if isinstance(frame.value, list):
            frame.value.append(value)
        elif frame.merging:
            frame.merges += value if isinstance(value, list) else [value]
            frame.merging = False
        elif frame.key is None:
            raise DocumentError("a key must be a string, not an alias")
        else:
            frame.value[frame.key] = value
            frame.key = None

    def _remember(self, anchor: str | None, value: Any, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)


def _merge(frame: _Frame) -> None:
    """Add what ``<<`` brings: a mapping's own keys go before merged ones, earlier merges before later ones."""
    if isinstance(frame.value, dict):
        for merged in frame.merges:
            if not isinstance(merged, dict):
                raise DocumentError("<< takes a mapping, or a list of mappings")
            for key, value in merged.items():
                frame.value.setdefault(key, value)


def _plain_tag(text: str) -> str:
    """Return what text without quotes is, as the YAML reader of Kubernetes sees it (sigs.k8s.io/yaml)."""
    if text in _NULLS:
        return "null"
    if text.lower() in _BOOLS and text in (text.lower(), text.capitalize(), text.upper()):
        return "bool"
    if text == "<<":
        return "merge"
    digits = text if text.startswith(".") else text.replace("_", "")
    if text[0] not in "+-.0123456789":
        return "str"
    if _INTEGER.fullmatch(digits):
        return "int"
    return "float" if _DECIMAL.fullmatch(digits) or _INFINITE.fullmatch(text) else "str"


def _scalar(text: str, tag: str) -> Any:
    match tag:
        case "null":
            return None
        case "bool" if text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        case "int" | "float":
            try:
                return _integer(text) if tag == "int" else _decimal(text)
            except ValueError as error:
                raise DocumentError(f"{text[:40]!r} is not a number") from error
        case "str" | "timestamp" | "value" | "merge":
            return text
    raise DocumentError(f"the tag {tag} has no meaning in a manifest")


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    unsigned = digits.lstrip("+-")
    octal = unsigned.startswith("0") and unsigned.isdecimal() and unsigned != "0"
    number = int(digits, 8 if octal else 0)
    if number.bit_length() > _WIDEST and not (unsigned.isdecimal() and not octal):
        raise ValueError("wider than 64 bits, which Kubernetes reads as a text")
    return number


def _decimal(text: str) -> int | float:
    digits = text.replace("_", "").lower()
    return _whole(float(digits.replace(".inf", "inf").replace(".nan", "nan")))


def _whole(number: float) -> int | float:
    """Return a number without a fraction as an integer, as JSON writes it."""
    return int(number) if abs(number) < _EXACT and number.is_integer() else number
