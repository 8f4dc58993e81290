"""Loads YAML and JSON text that nobody has checked into plain Python values.

Scalars are what they are for Kubernetes, and a key written twice is an error. The values are built from parser events
on a stack of our own: nesting is bounded, and an alias counts as large as what it stands for, so that a few lines
cannot become gigabytes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final

import yaml
from yaml import CSafeLoader

from gputile.support.yaml_mistakes import described_mistake
from gputile.support.yaml_scalars import ScalarError, as_json, read_key, read_scalar

DEEPEST = 100
MOST_VALUES = 5_000_000
_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
_TEMPLATE = "{{ }} of a template is filled in first, as helm template does"
_TAG = "tag:yaml.org,2002:"
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = "\ufeff"
_MARKED_LINE: Final = re.compile(f"^{_MARK}", re.MULTILINE)
_SEPARATOR: Final = re.compile(r"^---(.*)\n?", re.MULTILINE)
_OBJECT: Final = re.compile(r"[ \t\r\n]*(?={)")


_LONGEST_PLACE: Final = 200  # characters of it that are shown
_MOST_DIGITS: Final = 4_000  # of a whole number; Python reads no more than 4,300


class DocumentError(ValueError):
    """The text is not YAML or JSON of the kind that manifests are written in; says where and why."""


def load_documents(text: str) -> Iterator[Any]:
    """Yield the value of each document in ``text``; an empty document is None.

    kubectl's rules tell where one ends: JSON objects stand one behind the other, and each line that begins with "---"
    ends a document of YAML. What begins with a JSON object is JSON to its end. A document may begin with a byte order
    mark. What kubectl leaves out in silence, behind "..." for one, is refused.

    Raises:
        DocumentError: the text cannot be read, or is larger or deeper than a manifest may be.
    """
    end = count = 0
    for value, behind in _json_objects(text):
        count, end = count + 1, behind
        yield value
    if count == 0:
        yield from _yaml_stream(text, 0)
    elif text[end:].strip():
        objects = "a JSON object" if count == 1 else f"{count} JSON objects"
        why = (
            "kubectl reads a text that begins with one as JSON to its end: begin with a line of ---, or leave these out"
        )
        raise DocumentError(f"line {_line_of(text, end)}: what follows {objects} is not JSON: {why}")


def why_no_text(error: UnicodeDecodeError, encoding: str = "UTF-8") -> str:
    """Return why what was read is no text in an encoding."""
    if error.object.startswith(_GZIP):
        return "it is compressed by gzip: unpack it first"
    return f"it is not {encoding} text: {error.reason} at byte {error.start}"


def load_document(content: str | bytes) -> Any:
    """Return the value of the one document in ``content``; an empty file is None.

    Raises:
        DocumentError: as of ``load_documents``, or it is no UTF-8 text, or there are several documents.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(why_no_text(error)) from error
    found = [value for value, end in islice(_json_objects(text), 1) if not text[end:].strip()]
    found = found or list(islice(_load_yaml(text), 2))
    if len(found) > 1:
        raise DocumentError("it holds several documents, where one is expected")
    value = found[0] if found else None
    if _is_deep(value):
        raise DocumentError(_TOO_DEEP)
    return value


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


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


def _json_objects(text: str) -> Iterator[tuple[Any, int]]:
    """Yield each object at the beginning of ``text`` that is JSON, and where it ends."""
    halves, end = "\\ud" in text.lower(), 0
    while found := _OBJECT.match(text, end):
        try:
            value, end = _JSON.raw_decode(text, found.end())
            if halves:
                json.dumps(value, ensure_ascii=False).encode()  # an escape may spell half a character
        except json.JSONDecodeError:
            return  # YAML in flow style begins with a bracket too
        except RecursionError:
            raise DocumentError(_TOO_DEEP) from None
        except UnicodeEncodeError:
            raise DocumentError("an escape such as \\ud800 without its other half is not text") from None
        except ValueError as error:
            raise error if isinstance(error, DocumentError) else DocumentError(str(error)) from None
        yield value, end


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise DocumentError(f"the key {twice[:80]!r} is written twice in one mapping")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise DocumentError(f"the number {text[:20]}... has {len(text):,} digits, more than any field takes")
    return int(text)


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_distinct,
    parse_constant=_refuse_constant,
    parse_float=lambda each: as_json(float(each)),
    parse_int=_integer,
)


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that is being read. ``size`` counts its values, those of aliases included."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    size: int = 1
    key: str | None = None
    merging: bool = False
    merges: list[Any] = field(default_factory=list)
    in_braces: bool = False


def _yaml_stream(text: str, line: int) -> Iterator[Any]:
    """Yield the value of each document; ``line`` lines stand before the text."""
    start = 0
    for separator in chain(_SEPARATOR.finditer(text), (None,)):
        if separator and separator[1].strip()[:1] not in ("", "#"):
            where = line + _line_of(text, separator.start())
            raise DocumentError(f"line {where}: behind --- only a comment can stand in its line")
        if separator and separator.start() == start:  # it begins the document, as the one before has ended
            yield from [None] if start else []
            continue
        document = text[start : separator.start() if separator else len(text)]
        found = list(islice(_load_yaml(_unmarked(document, line), line), 2))
        if len(found) > 1:
            raise DocumentError(f"line {line + 1}: a second document begins within this one: --- must begin a line")
        yield from found or ([None] if start else [])
        if separator:
            line += text.count("\n", start, separator.end())
            start = separator.end()


def _unmarked(document: str, line: int) -> str:
    """Return a document without the byte order mark that it begins with; ``line`` lines stand before it."""
    document = document.removeprefix(_MARK)
    if mark := _MARKED_LINE.search(document):
        where = line + _line_of(document, mark.start())
        raise DocumentError(f"line {where}: it begins with a byte order mark, as only a document can")
    return document


def _load_yaml(text: str, before: int = 0) -> Iterator[Any]:
    """Yield the value of each document; ``before`` lines stand before the text."""
    try:
        loader = CSafeLoader(text)
        try:
            yield from _documents(loader, before)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise DocumentError(described_mistake(error, text, before)) from error
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, int) else ord(error.character)
        raise DocumentError(f"the character U+{character:04X} is not allowed") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise DocumentError(str(error).replace("\n", " ")) from error


def _documents(loader: CSafeLoader, before: int) -> Iterator[Any]:
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
            except (DocumentError, ScalarError) as error:
                line = before + event.start_mark.line + 1 if event.start_mark else 0
                field = f"{place}: " if isinstance(error, ScalarError) and (place := builder.place) else ""
                raise DocumentError(f"line {line}: {field}{error}") from error.__cause__


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
        self._scalars: dict[str, tuple[str, str]] = {}  # text and tag of those anchors that stand for scalars

    @property
    def place(self) -> str:
        """Where the value that comes next stands, as "spec.rows[1][0]"."""
        steps = (
            f"[{len(each.value)}]" if isinstance(each.value, list) else f".{each.key or ''}" for each in self._stack
        )
        return "".join(steps).strip(".")[:_LONGEST_PLACE]

    def take(self, event: yaml.Event) -> None:
        """Take the next event of the document."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise DocumentError(f"the alias *{event.anchor} stands for nothing that is complete before it")
            if self._needs_key() and event.anchor in self._scalars:
                self._take_key(*self._scalars[event.anchor])
            else:
                self._put(*self._anchors[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            is_map = isinstance(event, yaml.MappingStartEvent)
            if self._needs_key():  # whatever its tag: kubectl reads no tag of a collection
                raise DocumentError(_TEMPLATE if self._in_braces(event) else "a key must be a string")
            if len(self._stack) == DEEPEST:
                raise DocumentError(_TOO_DEEP)
            self._stack.append(_Frame({} if is_map else [], event.anchor, in_braces=is_map and bool(event.flow_style)))
        else:
            frame = self._stack.pop()
            _merge(frame)
            self._put(frame.value, frame.size)
            if frame.anchor is not None:
                self._anchors[frame.anchor] = frame.value, frame.size
                self._scalars.pop(frame.anchor, None)

    def _in_braces(self, event: yaml.CollectionStartEvent) -> bool:
        """Return whether a mapping in braces is the first key of another, as {{ }} reads."""
        frame = self._stack[-1]
        return (
            frame.in_braces and not frame.value and isinstance(event, yaml.MappingStartEvent) and bool(event.flow_style)
        )

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        tag = _tag_of(event)
        if self._needs_key():
            self._take_key(event.value, tag)
            if event.anchor is not None:
                self._remember_scalar(event.anchor, event.value, tag)
            return
        value = read_scalar(event.value, tag)
        self._put(value, 1)
        if event.anchor is not None:
            self._remember_scalar(event.anchor, event.value, tag)

    def _needs_key(self) -> bool:
        if not self._stack:
            return False
        frame = self._stack[-1]
        return isinstance(frame.value, dict) and frame.key is None and not frame.merging

    def _take_key(self, text: str, tag: str) -> None:
        frame = self._stack[-1]
        if tag == "merge" or (text == "<<" and not tag):
            frame.merging = True
            return
        key = read_key(text, tag)
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
            raise DocumentError("a key must be a string, not an alias of something else")
        else:
            frame.value[frame.key] = value
            frame.key = None

    def _remember_scalar(self, anchor: str, text: str, tag: str) -> None:
        self._anchors[anchor] = read_scalar(text, tag), 1
        self._scalars[anchor] = text, tag


def _tag_of(event: yaml.ScalarEvent) -> str:
    """Return a scalar's tag without the prefix of YAML's own; "str" where it has none and is no plain text, else ""."""
    if event.tag is None:
        return "" if event.implicit[0] else "str"
    tag: str = event.tag
    return tag.removeprefix(_TAG) if tag.startswith(_TAG) else "str"  # kubectl takes any other for that of a text


def _merge(frame: _Frame) -> None:
    """Add what ``<<`` brings: a mapping's own keys go before merged ones, earlier merges before later ones."""
    if isinstance(frame.value, dict):
        for merged in frame.merges:
            if not isinstance(merged, dict):
                raise DocumentError("<< takes a mapping, or a list of mappings")
            for key, value in merged.items():
                frame.value.setdefault(key, value)
