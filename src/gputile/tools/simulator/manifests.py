"""Reads manifests from files. Errors name the location of a mistake and the broken rule.

This module also generates the names and UIDs that a cluster would generate. They are the same in
every run.
"""

import codecs
import hashlib
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final, TextIO, TypeVar

from gputile.api.conversion import ConversionError, convert
from gputile.api.quantity import MIB
from gputile.api.wording import below, broken_subdomain, first_of, kind_of
from gputile.support.files import read_bounded
from gputile.support.yaml_loader import DocumentError, load_documents, why_no_text

MOST_BYTES: Final = 64 * MIB
STDIN_NAME: Final = "standard input"
STDIN_TWICE: Final = "the standard input is named twice, but can be read only once"
SUFFIXES: Final = (".yaml", ".yml", ".json")
KUSTOMIZE_GROUP: Final = "kustomize.config.k8s.io"
BUILT_BY_KUSTOMIZE: Final = (
    "build manifests with kustomize first: kustomize build DIR | gputile simulate -f -"
)
BUILT_BY_HELM: Final = (
    "build manifests with helm first: helm template CHART | gputile simulate -f -"
)
_BUILT_FIRST: Final = {  # remedies, by a part of the file's name
    "kustomization": BUILT_BY_KUSTOMIZE,
    "Chart": BUILT_BY_HELM,
    "values": BUILT_BY_HELM,
}
_OBJECTS_SHOWN: Final = 5  # the largest number of objects that a note names
# The alphabet of Kubernetes for generated names, without vowels and similar characters.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIXES: Final = len(_ALPHABET) ** 5
_LONGEST_PREFIX: Final = 58  # the API server cuts off further characters of a generateName
_UIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "gputile.io")

T = TypeVar("T")


class ManifestError(ValueError):
    """A manifest is invalid. The message names the file, document, object, field and rule."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The location of an object: a document of a file, and an item if the document is a List.

    Documents and items are numbered from 1. The number 0 means none.
    """

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
        """Return an error which states that the field at ``path`` breaks ``rule``.

        The empty path means the object itself.
        """
        return ManifestError(f"{self}: {path}: {rule}" if path else f"{self}: {rule}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object of a manifest, without null values.

    ``described`` states whether the object's file describes the current state of a cluster.
    """

    origin: Origin
    api_version: str
    kind: str
    body: dict[str, Any]
    described: bool = False

    @property
    def group(self) -> str:
        """The API group, which is "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def namespaced_name(self) -> tuple[str, str]:
        """The namespace and the name. Their defaults are "default" and ""."""
        metadata = self.body.get("metadata")
        found = metadata if isinstance(metadata, dict) else {}
        return str(found.get("namespace") or "default"), str(found.get("name") or "")

    @property
    def stored(self) -> bool:
        """Whether an API server has stored the object.

        An object with a UID counts as stored. So does a bound pod in a cluster's description.
        """
        metadata, spec = self.body.get("metadata"), self.body.get("spec")
        if isinstance(metadata, dict) and metadata.get("uid"):
            return True
        return self.described and isinstance(spec, dict) and bool(spec.get("nodeName"))

    @property
    def is_bound_pod(self) -> bool:
        """Whether the object is a stored Pod that is bound to a node."""
        spec = self.body.get("spec")
        return (
            self.kind == "Pod"
            and self.stored
            and isinstance(spec, dict)
            and bool(spec.get("nodeName"))
        )

    @property
    def is_validated(self) -> bool:
        """Whether the values of the object's fields are validated.

        Bound Pods, and stored objects in a cluster's description, are not validated. They
        may contain values that only API servers and controllers may write.
        """
        return not (self.stored if self.described else self.is_bound_pod)

    def within(self, namespace: str) -> "Manifest":
        """Return the object, with its namespace set to ``namespace`` if it has none."""
        metadata = self.body.get("metadata", {})
        if not isinstance(metadata, dict) or metadata.get("namespace"):
            return self
        return replace(self, body=self.body | {"metadata": metadata | {"namespace": namespace}})

    def decode(self, type_: type[T]) -> T:
        """Convert the object to ``type_``.

        Raises:
            ManifestError: a field has the wrong type, or is unknown and ``type_`` forbids that.
        """
        return decode(self.origin, "", self.body, type_)


@dataclass(frozen=True, slots=True)
class Note:
    """A text for the user that is not an error. ``origin`` is the object that the text is about."""

    text: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}" if self.origin is not None else self.text


def merged_notes(notes: Iterable[Note]) -> list[str]:
    """Return the notes as printed. Equal notes on objects of the same file become one sentence."""
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        groups.setdefault(
            (note.origin.file if note.origin is not None else "", note.text), []
        ).append(note)
    sentences = []
    for found in groups.values():
        origins = [note.origin for note in found if note.origin is not None]
        if len(set(found)) == 1 or not origins:
            sentences.append(str(found[0]))
        else:
            objects = [
                f"{origin.kind}/{origin.name or '(no name)'}" for origin in dict.fromkeys(origins)
            ]
            sentences.append(
                f"{origins[0].file}: {first_of(objects, _OBJECTS_SHOWN)}: {found[0].text}"
            )
    return sentences


def load_manifests(paths: Iterable[str], *, described: bool = False) -> list[Manifest]:
    """Return the objects in ``paths``: files, directories, and "-" for the standard input.

    The files of a directory are read in the order of their names. Subdirectories are ignored.
    ``described`` states whether the files describe the state of a cluster.

    Raises:
        ManifestError: a file cannot be read, an object is invalid, or a path has no objects.
    """
    named, loaded = list(paths), list[Manifest]()
    if "" in named:
        raise ManifestError(
            "a path is empty; name a file, a directory, or - for the standard input"
        )
    if named.count("-") > 1:
        raise ManifestError(STDIN_TWICE)
    for path in named:
        if path == "-":
            loaded += parse_manifests(STDIN_NAME, read_standard_input(), described=described)
            continue
        found = [each for file, data in _files(path) for each in _read(file, data, described)]
        loaded += _not_empty(path, found)
    return loaded


def parse_manifests(name: str, data: bytes, *, described: bool = False) -> list[Manifest]:
    """Return the objects in ``data``. Errors name the source of the data as ``name``.

    Raises:
        ManifestError: an object is invalid, or the data has no objects.
    """
    return _not_empty(name, _read(name, data, described))


def _not_empty(name: str, found: list[Manifest]) -> list[Manifest]:
    if not found:
        raise ManifestError(f"{name}: there are no objects")
    return found


def decode(origin: Origin, path: str, body: Any, type_: type[T]) -> T:
    """Convert ``body``, the value at ``path`` in the object at ``origin``, to ``type_``.

    Raises:
        ManifestError: ``body`` does not have the fields and types of ``type_``.
    """
    try:
        return convert(body, type_)
    except ConversionError as error:
        found = [
            origin.error(below(path, mistake.path), mistake.rule) for mistake in error.mistakes
        ]
        raise ManifestError("\n".join(map(str, found))) from error


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    reading = path
    try:
        for file in _manifest_files(Path(path)) if Path(path).is_dir() else [Path(path)]:
            reading = str(file)
            yield reading, read_bounded(file, MOST_BYTES)
    except FileNotFoundError as error:
        if "://" in path:
            rule = "addresses are not read; save the manifest to a file, or pipe it in and name -"
            raise ManifestError(f"{path}: {rule}") from error
        raise ManifestError(f"{error.filename or reading}: {error.strerror}") from error
    except OSError as error:
        raise ManifestError(f"{error.filename or reading}: {error.strerror or error}") from error
    except ValueError as error:
        raise (
            error if isinstance(error, ManifestError) else ManifestError(f"{path!r}: {error}")
        ) from error


def _manifest_files(directory: Path) -> list[Path]:
    """Return the directory's files and symbolic links that have one of kubectl's suffixes."""
    named = sorted(each for each in directory.iterdir() if each.name.endswith(SUFFIXES))
    files = [each for each in named if each.is_symlink() or not each.is_dir()]
    if not files:
        raise ManifestError(f"{directory}: the directory has no {', '.join(SUFFIXES)} file")
    return files


def read_standard_input() -> bytes:
    """Return the data from the standard input.

    Raises:
        ManifestError: the input is closed, cannot be read, or is too large.
    """
    given: TextIO | None = sys.stdin
    if given is None:  # the file descriptor was closed when Python started
        raise ManifestError(f"{STDIN_NAME}: it is closed")
    try:
        data = given.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{STDIN_NAME}: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ManifestError(f"{STDIN_NAME}: it is larger than {MOST_BYTES // MIB} MiB")
    return data


def _read(file: str, data: bytes, described: bool) -> list[Manifest]:
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        what = "UTF-16" if wide else "UTF-8"
        raise ManifestError(f"{file}: {why_no_text(error, what)}") from error
    loaded, document = list[Manifest](), 0
    try:
        for document, body in enumerate(load_documents(text), 1):
            if body is not None:
                _append_object(Origin(file, document), body, loaded, described)
    except DocumentError as error:
        remedy = f"; {BUILT_BY_HELM}" if "{{" in text else ""
        raise ManifestError(f"{file}, document {document + 1}: {error}{remedy}") from error
    return loaded


def _append_object(origin: Origin, body: Any, loaded: list[Manifest], described: bool) -> None:
    if not isinstance(body, dict):
        raise origin.error(
            "", f"an object is a mapping with apiVersion and kind, this is {kind_of(body)}"
        )
    kind = body.get("kind")
    if not isinstance(kind, str) or not kind:
        name = PurePath(origin.file).name
        remedies = [f"; {remedy}" for part, remedy in _BUILT_FIRST.items() if part in name]
        raise origin.error("kind", f"must be a string{''.join(remedies[:1])}")
    origin = Origin(origin.file, origin.document, origin.item, kind, _display_name(body))
    api_version = body.get("apiVersion")
    if not isinstance(api_version, str) or not api_version:
        raise origin.error("apiVersion", "must be a string")
    if kind.endswith("List") and "items" in body:
        for item, place in _items(origin, api_version, kind, body):
            _append_object(place, item, loaded, described)
        return
    loaded.append(Manifest(origin, api_version, kind, _without_nulls(body), described))


def _without_nulls(value: Any) -> Any:
    """Copy a value without the null entries of its mappings. Null means that a field is absent."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _items(
    origin: Origin, api_version: str, kind: str, body: dict[str, Any]
) -> Iterator[tuple[Any, Origin]]:
    items = body["items"] if body["items"] is not None else []
    if not isinstance(items, list):
        raise origin.error("items", f"must be a list, is {kind_of(items)}")
    implied = (
        {"apiVersion": api_version, "kind": kind.removesuffix("List")} if kind != "List" else {}
    )
    for number, item in enumerate(items, 1):
        place = Origin(origin.file, origin.document, number)
        yield implied | item if isinstance(item, dict) else item, place


def _display_name(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    meta = metadata if isinstance(metadata, dict) else body
    name = meta.get("name") or meta.get("generateName")
    return name[:80] if isinstance(name, str) and name.isprintable() else ""


def make_uid(kind: str, namespace: str, name: str) -> str:
    """Return a UID that depends only on the object's kind, namespace and name."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{namespace}/{name}"))


def suffixes(seed: str) -> Callable[[int], str]:
    """Return a function that maps numbers to distinct suffixes. They depend only on ``seed``."""
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "big")
    offset, step = digest % _SUFFIXES, digest // _SUFFIXES % _SUFFIXES
    step += step % 3 == 0  # a step coprime to 27**5 gives each number a different suffix

    def suffix(number: int) -> str:
        value, text = (offset + number * step) % _SUFFIXES, ""
        for _ in range(5):
            value, digit = divmod(value, len(_ALPHABET))
            text += _ALPHABET[digit]
        return text

    return suffix


def generated_name(prefix: str, seed: str) -> str:
    """Return the name of an object whose ``generateName`` is ``prefix``."""
    return prefix[:_LONGEST_PREFIX] + suffixes(seed)(0)


def make_gpu_uuid(node: str, index: int) -> str:
    """Return a UUID in NVIDIA's format that depends only on the node's name and the GPU's index."""
    return f"GPU-{uuid.uuid5(_UIDS, f'GPU/{node}/{index}')}"


def check_name(origin: Origin, path: str, name: str) -> None:
    """Raise a ManifestError if ``name`` is not a valid name of an object."""
    if why := broken_subdomain(name):
        raise origin.error(path, why)
