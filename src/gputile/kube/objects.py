"""Reads lists, and decodes lists and watch events into typed objects.

One malformed object must not make other objects unreadable. A list is first decoded as a whole. If
that fails, each object is decoded on its own, and a malformed object becomes an
``UnreadableObject``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.core import ListMeta, ObjectMeta, Status
from gputile.kube.client import Connection, Query
from gputile.kube.errors import BadAnswer, Gone, status_error

PAGE_SIZE = 500
# Errors of msgspec, errors for text that is not UTF-8, and the error for deep nesting.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_STATUS: Final = msgspec.json.Decoder(Status)


class KubeObject(Protocol):
    """A msgspec struct with metadata. Its other fields all have defaults."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that exists but does not match its type. ``why`` is the reason."""

    namespace: str
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """A complete, consistent list of objects.

    An object that is in neither ``objects`` nor ``unreadable`` does not exist.
    """

    objects: Sequence[T]
    unreadable: Sequence[UnreadableObject] = ()


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """An object was created or changed."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object was deleted. If the object was unreadable, only its identity is set."""

    object: T


WatchEvent = Replaced[T] | Applied[T] | Deleted[T] | UnreadableObject


class WatchLine(NamedTuple, Generic[T]):
    """A line of a watch, with the resourceVersion that the watch has reached."""

    version: str
    event: Applied[T] | Deleted[T] | UnreadableObject | None  # None for a bookmark


Item = TypeVar("Item")


class _ListOf(msgspec.Struct, Generic[Item]):
    metadata: ListMeta
    items: list[Item] | None = None


class _EventOf(msgspec.Struct, Generic[Item], gc=False):
    type: str
    object: Item


_RAW_LIST: Final = msgspec.json.Decoder(_ListOf[msgspec.Raw])
_RAW_EVENT: Final = msgspec.json.Decoder(_EventOf[msgspec.Raw])


class ObjectDecoder(Generic[T]):
    """Decodes the lists and watches of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._object = msgspec.json.Decoder(kind)
        list_of, event_of = _ListOf[kind], _EventOf[kind]  # type: ignore[valid-type]
        self._list: msgspec.json.Decoder[_ListOf[T]] = msgspec.json.Decoder(list_of)
        self._event: msgspec.json.Decoder[_EventOf[T]] = msgspec.json.Decoder(event_of)

    def page(self, body: bytes) -> tuple[ListMeta, Replaced[T]]:
        """Decode one page of a list.

        Raises:
            BadAnswer: the page is not a list.
        """
        try:
            whole = self._list.decode(body)
        except UNREADABLE:
            return self._page_by_item(body)
        return whole.metadata, Replaced(whole.items or ())

    def _page_by_item(self, body: bytes) -> tuple[ListMeta, Replaced[T]]:
        try:
            raw = decode(body, _RAW_LIST)
        except ConversionError as error:
            begins = f"; it begins {body[:60].decode(errors='replace')!r}" if body.strip() else ""
            raise BadAnswer(
                f"the response is not a list of objects ({error}{begins}): is this an API server?"
            ) from error
        objects: list[T] = []
        unreadable: list[UnreadableObject] = []
        for item in raw.items or ():
            try:
                objects.append(decode(item, self._object))
            except ConversionError as error:
                unreadable.append(_unreadable(_identity(item), error))
        return raw.metadata, Replaced(objects, unreadable)

    def line(self, line: bytes, request: str) -> WatchLine[T]:
        """Decode one line of a watch. ``request`` is the path of the watch.

        Raises:
            BadAnswer: the line is not a watch event, or is an ERROR event.
            Gone: the line is the ERROR event for a resourceVersion that is too old.
        """
        try:
            event = self._event.decode(line)
        except UNREADABLE:
            return self._line_by_parts(line, request)
        version = event.object.metadata.resource_version
        if event.type in ("ADDED", "MODIFIED"):
            return WatchLine(version, Applied(event.object))
        if event.type == "DELETED":
            return WatchLine(version, Deleted(event.object))
        return self._line_by_parts(line, request)

    def _line_by_parts(self, line: bytes, request: str) -> WatchLine[T]:
        try:
            event = decode(line, _RAW_EVENT)
            if event.type == "ERROR":
                status = decode(event.object, _STATUS)
                if status.code == 410:
                    raise status_error("WATCH", request, status.code, status)
                raise BadAnswer(
                    f"the watch of {request} failed: {status.code} {status.reason} {status.message}"
                )
        except ConversionError as error:
            raise BadAnswer(
                f"the API server's watch of {request} cannot be read: {error}"
            ) from error
        identity = _identity(event.object)
        version = identity.resource_version
        if event.type == "BOOKMARK":
            return WatchLine(version, None)
        if event.type == "DELETED":
            return WatchLine(
                version,
                Deleted(msgspec.convert({"metadata": identity}, self._kind, from_attributes=True)),
            )
        if event.type in ("ADDED", "MODIFIED"):
            try:
                decode(event.object, self._object)
            except ConversionError as error:
                return WatchLine(version, _unreadable(identity, error))
        raise BadAnswer(f"the API server's watch of {request} has an event of type {event.type!r}")


def _identity(raw: msgspec.Raw) -> ObjectMeta:
    """Return an object's name, namespace, UID and resourceVersion. Unreadable fields are empty."""
    try:
        document: Any = msgspec.json.decode(raw)
    except UNREADABLE:
        return ObjectMeta()
    metadata = document.get("metadata") if isinstance(document, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    name, namespace, uid, version = (
        _text(found.get(key)) for key in ("name", "namespace", "uid", "resourceVersion")
    )
    return ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _unreadable(identity: ObjectMeta, error: Exception) -> UnreadableObject:
    return UnreadableObject(identity.namespace, identity.name, identity.uid, str(error))


async def list_pages(
    connection: Connection,
    path: str,
    decoder: ObjectDecoder[T],
    query: Query,
    *,
    page_size: int = PAGE_SIZE,
    seconds: float | None = None,
) -> tuple[str, Replaced[T]]:
    """Return the resourceVersion of the list and all its objects.

    The list is read from a quorum of etcd, in pages of ``page_size`` objects. ``seconds`` is the
    time limit of one page. None means the connection's default.

    Raises:
        KubeError: the list cannot be read.
    """
    objects: list[T] = []
    unreadable: list[UnreadableObject] = []
    page_query = {**query, "limit": str(page_size)}
    while True:
        try:
            body = await connection.get(path, page_query, within=seconds)
        except Gone:
            if "limit" not in page_query:
                raise
            # The continue token has expired. A list that is read in one piece needs no token.
            page_query = dict(query)
            objects, unreadable = [], []
            continue
        metadata, page = decoder.page(body)
        objects += page.objects
        unreadable += page.unreadable
        if not metadata.continue_:
            return metadata.resource_version, Replaced(objects, unreadable)
        page_query = {**page_query, "continue": metadata.continue_}


async def list_all(
    connection: Connection, path: str, kind: type[T], query: Query | None = None
) -> list[T]:
    """Return all readable objects at ``path`` that match ``query``.

    Raises:
        KubeError: the list cannot be read.
    """
    _, replaced = await list_pages(connection, path, ObjectDecoder(kind), query or {})
    return list(replaced.objects)
