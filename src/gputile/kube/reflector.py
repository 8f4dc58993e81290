"""Lists and watches all objects of one kind, and reports each change to a consumer.

The reflector lists the objects once, and watches from the resourceVersion of the list. It lists
again if it may have missed events. A ``Replaced`` gives the consumer all objects. The events
that follow report the changes in order. The reflector stores no objects.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn

from gputile.api.core import is_older
from gputile.kube.client import Backoff, Connection, Query
from gputile.kube.errors import (
    AnswerLost,
    BadAnswer,
    ConnectionFailed,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from gputile.kube.objects import (
    PAGE_SIZE,
    ObjectDecoder,
    Replaced,
    T,
    UnreadableObject,
    WatchEvent,
    WatchLine,
    list_pages,
)
from gputile.support.telemetry import MetricsRegistry, Values

log = logging.getLogger(__name__)

_MOST_LOGGED = 1024  # remembered unreadable objects; each of them is logged once
_RESUMABLE = (ConnectionFailed, AnswerLost, TooManyRequests, ServerError, Unauthorized, Forbidden)


@dataclass(slots=True)
class ReflectorCounts:
    """The counters of a reflector since its start, for metrics."""

    lists: int = 0
    unreadable: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ReflectorSettings:
    """The settings for lists and watches.

    The duration of a watch is random, so that the agents of a cluster do not reconnect at the same
    time. If ``absent_seconds`` is 0, a kind that is not installed is an error. Otherwise the
    reflector reports an empty list, and lists again after ``absent_seconds``.
    """

    query: Query = field(default_factory=dict)  # a fieldSelector or labelSelector
    page_size: int = PAGE_SIZE  # objects
    list_seconds: float = 60.0  # the time limit of one page
    watch_seconds: tuple[int, int] = (290, 590)  # the minimum and maximum duration of a watch
    margin: float = 30.0  # extra seconds before the client closes a watch that has not ended
    absent_seconds: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


_SETTINGS = ReflectorSettings()


class Reflector(Generic[T]):
    """Lists and watches ``path``, and calls ``on_event`` for each event.

    If ``on_list`` is set, it receives the lists instead of ``on_event``. The watch then begins
    after ``on_list`` has returned. An exception of ``on_list`` or ``on_event`` ends ``run``.
    ``synced`` states whether the consumer has received a complete list. ``last_error`` is the error
    of the latest list or watch, or None after a success.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        kind: type[T],
        on_event: Callable[[WatchEvent[T]], None],
        *,
        on_list: Callable[[Replaced[T]], Awaitable[None]] | None = None,
        settings: ReflectorSettings = _SETTINGS,
    ) -> None:
        self.counts = ReflectorCounts()
        self.synced = False
        self.last_error: KubeError | None = None
        self._connection = connection
        self._path = path
        self._decoder = ObjectDecoder(kind)
        self._on_event = on_event
        self._on_list = on_list
        self._settings = settings
        self._version = ""  # the version at which a watch can resume; empty if a list is needed
        self._waiting: list[asyncio.Future[None]] = []
        self._scope: asyncio.Timeout | None = None
        self._failures = 0  # consecutive failures, for the back-off
        self._progressed = False  # whether the latest watch has delivered a line
        self._logged: set[UnreadableObject] = set()

    async def relist(self) -> None:
        """List again, and return when the consumer has received the list.

        The list is requested after this call, and is read from a quorum of etcd. So it contains
        all changes that were made before the call.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._scope is not None and self._scope.when() is None:
            self._scope.reschedule(asyncio.get_running_loop().time())
        await future

    async def run(self) -> NoReturn:
        try:
            while True:
                pause = await self._list_and_watch()
                if pause:
                    await self._until_relist(asyncio.sleep(pause))
        finally:
            for future in self._waiting:
                if not future.done():
                    future.set_exception(RuntimeError(f"the reflector of {self._path} has stopped"))

    async def _list_and_watch(self) -> float:
        """List if necessary, and watch once. Return the seconds until the next attempt."""
        try:
            while self._waiting or not self._version:
                await self._list()
            await self._until_relist(self._watch())
        except Gone as error:
            log.info("listing again: %s", error)
            self._version = ""
            self._failures += 1
            return self._settings.backoff.delay(self._failures - 2) if self._failures > 1 else 0.0
        except KubeError as error:
            if isinstance(error, NotFound) and self._settings.absent_seconds:
                self._version = ""
                self._on_event(Replaced([]))
                return self._settings.absent_seconds
            log.warning("%s; retrying", error)
            self.last_error = error
            if not _resumable(error):
                self._version = ""
            elif self._progressed:
                self._failures = 0
            self.counts.failures += 1
            self._failures += 1
            return max(self._settings.backoff.delay(self._failures - 1), error.retry_after)
        self._failures = 0
        return 0.0

    async def _list(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            version, replaced = await list_pages(
                self._connection,
                self._path,
                self._decoder,
                self._settings.query,
                page_size=self._settings.page_size,
                seconds=self._settings.list_seconds,
            )
        except BaseException:
            self._waiting = waiting + self._waiting
            raise
        self._version = version
        self.counts.lists += 1
        self.counts.unreadable += len(replaced.unreadable)
        self._logged.intersection_update(replaced.unreadable)
        for each in replaced.unreadable:
            self._log(each)
        if self._on_list is not None:
            await self._on_list(replaced)
        else:
            self._on_event(replaced)
        self.synced, self.last_error = True, None
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _watch(self) -> None:
        seconds = random.SystemRandom().randint(*self._settings.watch_seconds)
        query = {
            **self._settings.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        self._progressed = False
        lines = LineSplitter()
        async with self._connection.stream(
            self._path, query, within=seconds + self._settings.margin
        ) as chunks:
            self.last_error = None
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    self._handle(self._decoder.line(line, self._path))
                    self._progressed = True
        if not self._progressed:
            raise BadAnswer(f"the watch of {self._path} ended without an event")

    def _handle(self, line: WatchLine[T]) -> None:
        version, event = line.version, line.event
        if version == self._version:
            return
        if is_older(version, self._version):
            if event is None:
                return
            raise BadAnswer(
                f"the watch of {self._path} went back from version {self._version} to {version}"
            )
        self._version = version
        if event is None:
            return
        if isinstance(event, UnreadableObject):
            self.counts.unreadable += 1
            self._log(event)
        self._on_event(event)

    def _log(self, unreadable: UnreadableObject) -> None:
        if unreadable not in self._logged:
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged.add(unreadable)
            where = f"{unreadable.namespace}/{unreadable.name}".lstrip("/")
            log.warning("cannot read %s of %s: %s", where, self._path, unreadable.why)

    async def _until_relist(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, and cancel it when ``relist`` is called."""
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                await work
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scope = None


class LineSplitter:
    """Splits chunks into lines. A line that spans many chunks is joined only once, at its end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the non-empty lines that ``chunk`` completes, without their newlines."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        return [line for line in lines if line]


def _resumable(error: KubeError) -> bool:
    """Return whether the watch can resume. A 504 may mean that its resourceVersion is too new."""
    return isinstance(error, _RESUMABLE) and not (
        isinstance(error, ServerError) and error.status == 504
    )


def export_reflectors(
    registry: MetricsRegistry, component: str, reflectors: Mapping[str, Reflector[Any]]
) -> None:
    """Export ``gputile_<component>_reflector_<count>_total{resource}`` of each reflector."""
    registry.labelled_counter(
        f"gputile_{component}_reflector_lists",
        "Complete lists read from the API server. More than a few mean that watches cannot resume.",
        "resource",
        _values(reflectors, "lists"),
    )
    registry.labelled_counter(
        f"gputile_{component}_reflector_failures",
        "Failed lists and watches; each is retried.",
        "resource",
        _values(reflectors, "failures"),
    )
    registry.labelled_counter(
        f"gputile_{component}_reflector_unreadable",
        "Objects that cannot be read and are ignored.",
        "resource",
        _values(reflectors, "unreadable"),
    )


def _values(reflectors: Mapping[str, Reflector[Any]], count: str) -> Values:
    return lambda: (
        (resource, getattr(each.counts, count)) for resource, each in reflectors.items()
    )
