"""Manifests out of files: one object each, and errors that say where a mistake stands and which rule it breaks."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

import msgspec

from gputile.support.yaml_loader import DEEPEST, DocumentError, load_documents
from gputile.tools.simulator.object_count import excess, too_many

MOST_BYTES = 64 * 1024 * 1024
SUFFIXES = (".yaml", ".yml", ".json")
_STRING_MAPS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LONGEST_NAME = 253

T = TypeVar("T")


class ManifestError(ValueError):
    """A manifest cannot be used; the text names file, document, object and field, and the rule it breaks."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an object was written. ``item`` counts within a List, from 1; 0 outside of one."""

    file: str
    document: int = 0
    item: int = 0
    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        item = f", item {self.item}" if self.item else ""
        place = f"{self.file}, document {self.document}{item}" if self.document else self.file
        return f"{place}: {self.kind}/{self.name or '(no name)'}" if self.kind else place

    def error(self, path: str, rule: str) -> ManifestError:
        """Return the error that the field at ``path`` breaks ``rule``; an empty path means the object itself."""
        return ManifestError(f"{self}: {path}: {rule}" if path else f"{self}: {rule}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as written, nulls left out. ``kind`` is in Kubernetes' own spelling."""

    origin: Origin
    api_version: str
    kind: str
    body: dict[str, Any]

    @property
    def group(self) -> str:
        """The API group; "" for the core group."""
        return self.api_version.rpartition("/")[0]

    def decode(self, type_: type[T]) -> T:
        """Return the object as ``type_``.

        Raises:
            ManifestError: a field has the wrong type, or is not one of the type's where it allows no others.
        """
        return decode(self.origin, "", self.body, type_)


@dataclass(slots=True)
class Loaded:
    """What the files hold. ``notes`` are sentences about what was understood loosely or left out."""

    manifests: list[Manifest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_KINDS = (
    *("Cluster", "CronJob", "DaemonSet", "Deployment", "Job", "List", "Node", "NodeList", "Pod", "PodList"),
    *("ReplicaSet", "ReplicationController", "StatefulSet"),
)
_SPELLING = {kind.lower(): kind for kind in _KINDS}


def load_manifests(paths: Iterable[str], stdin: BinaryIO | None = None) -> Loaded:
    """Return the objects in files, in the files of directories (by name, not below), and in "-", the standard input.

    Raises:
        ManifestError: a file cannot be read, or an object in it is not one.
    """
    named, loaded = list(paths), Loaded()
    if "" in named:
        raise ManifestError("a file's name is empty; name a file, a directory, or - for the standard input")
    if named.count("-") > 1:
        raise ManifestError("the standard input is named twice, and can be read once")
    for path in named:
        for file, data in _files(path, stdin):
            _read(file, data, loaded)
    return loaded


def decode(origin: Origin, path: str, body: Any, type_: type[T]) -> T:
    """Return ``body``, which stands at ``path`` of the object, as ``type_``.

    Raises:
        ManifestError: it does not fit the type.
    """
    try:
        return msgspec.convert(body, type_)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise origin.error(*misfit(str(error), path)) from error


def misfit(said: str, path: str = "") -> tuple[str, str]:
    """Return the field, in an object that stands at ``path``, and the rule it breaks, of what a decoder ``said``."""
    rule, _, where = said.partition(" - at `$")
    return f"{path}{where.rstrip('`')}".lstrip("."), rule


def check_name(origin: Origin, path: str, name: str) -> str:
    """Return ``name`` where it is a name that Kubernetes takes.

    Raises:
        ManifestError: it is not.
    """
    if len(name) > _LONGEST_NAME or not _SUBDOMAIN.fullmatch(name):
        rule = (
            "must be at most 253 lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        )
        raise origin.error(path, f"{name[:80]!r} {rule}")
    return name


def _files(path: str, stdin: BinaryIO | None) -> Iterator[tuple[str, bytes]]:
    if path == "-":
        yield "standard input", _standard_input(stdin)
        return
    try:
        place = Path(path)
        files = [place]
        if place.is_dir():
            files = sorted(file for file in place.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not files:
                raise ManifestError(f"{path}: the directory holds no {', '.join(SUFFIXES)} file")
        for file in files:
            with file.open("rb") as stream:
                yield str(file), _bounded(str(file), stream)
    except OSError as error:
        raise ManifestError(f"{error.filename or path}: {error.strerror or error}") from error
    except ValueError as error:
        raise error if isinstance(error, ManifestError) else ManifestError(f"{path!r}: {error}") from error


def _standard_input(stdin: BinaryIO | None) -> bytes:
    given: TextIO | None = sys.stdin
    if stdin is None and given is None:  # so Python says that the descriptor was closed before it began
        raise ManifestError("standard input: it is closed")
    try:
        return _bounded("standard input", stdin or sys.stdin.buffer)
    except OSError as error:
        raise ManifestError(f"standard input: {error.strerror or error}") from error


def _bounded(file: str, stream: BinaryIO) -> bytes:
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ManifestError(f"{file}: it is larger than {MOST_BYTES // 1024**2} MiB")
    return data


def _read(file: str, data: bytes, loaded: Loaded) -> None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: it is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if excessive := excess(text):
        raise ManifestError(f"{file}: {excessive}")
    document = 0
    try:
        for document, body in enumerate(load_documents(text), 1):
            if body is not None:
                _take(Origin(file, document), body, loaded)
    except DocumentError as error:
        raise ManifestError(f"{file}, document {document + 1}: {error}") from error


def _take(origin: Origin, body: Any, loaded: Loaded) -> None:
    if not isinstance(body, dict):
        raise origin.error("", f"an object is a mapping with apiVersion and kind, this is {_name_of(body)}")
    written = body.get("kind")
    if not isinstance(written, str) or not written:
        raise origin.error("kind", "must be there, as a string")
    kind = _SPELLING.get(written.lower(), written)
    origin = Origin(origin.file, origin.document, origin.item, kind, _display_name(body))
    api_version = body.get("apiVersion")
    if not isinstance(api_version, str) or not api_version:
        raise origin.error("apiVersion", "must be there, as a string")
    if kind != written:
        loaded.notes.append(f"{origin}: kind: {written!r} is read as {kind!r}, which is how Kubernetes writes it")
    if kind.endswith("List") and "items" in body:
        _take_list(origin, api_version, kind, body, loaded)
        return
    clean = _Cleaner(origin).clean(body)
    loaded.manifests.append(Manifest(origin, api_version, kind, clean))


def _take_list(origin: Origin, api_version: str, kind: str, body: dict[str, Any], loaded: Loaded) -> None:
    items = body.get("items") or []
    if not isinstance(items, list):
        raise origin.error("items", f"must be a list, is {_name_of(items)}")
    if excessive := too_many(len(items)):
        raise origin.error("", excessive)
    implied = {"apiVersion": api_version, "kind": kind.removesuffix("List")} if kind != "List" else {}
    for number, item in enumerate(items, 1):
        place = Origin(origin.file, origin.document, number)
        if isinstance(item, dict) and isinstance(item.get("kind"), str) and item["kind"].lower().endswith("list"):
            raise place.error("kind", "a list holds objects, not another list")
        _take(place, implied | item if isinstance(item, dict) else item, loaded)


def _display_name(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    meta = metadata if isinstance(metadata, dict) else body
    name = meta.get("name") or meta.get("generateName")
    return name[:80] if isinstance(name, str) and name.isprintable() else ""


def _name_of(value: Any) -> str:
    """Return what a YAML value is, in words."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "nothing")


class _Cleaner:
    """Copies an object without its nulls, which mean absent, and checks that label-like maps hold strings."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._path: list[str] = []

    def clean(self, value: Any) -> Any:
        """Return the copy.

        Raises:
            ManifestError: too deep, or a label-like value that is not a string.
        """
        if not isinstance(value, dict | list):
            return value
        if len(self._path) > DEEPEST:
            raise self._origin.error("", f"it is nested deeper than {DEEPEST} levels")
        if isinstance(value, list):
            return [self._clean_at(f"[{i}]", item) for i, item in enumerate(value)]
        return {
            key: self._clean_strings(key, item) if key in _STRING_MAPS else self._clean_at(f".{key}", item)
            for key, item in value.items()
            if item is not None
        }

    def _clean_at(self, step: str, value: Any) -> Any:
        self._path.append(step)
        clean = self.clean(value)
        self._path.pop()
        return clean

    def _clean_strings(self, name: str, value: Any) -> Any:
        """Copy a map of strings; a null in it is an empty string, as for the API server."""
        if not isinstance(value, dict):
            return self._clean_at(f".{name}", value)
        for key, item in value.items():
            if item is not None and not isinstance(item, str):
                where = "".join([*self._path, f'.{name}["{key[:80]}"]']).lstrip(".")
                hint = "" if isinstance(item, dict | list) else ": write it in quotes"
                raise self._origin.error(where, f"must be a string, is {_name_of(item)}{hint}")
        return {key: self._clean_at(f".{key}", item or "") for key, item in value.items()}
