"""Sends events about pods and nodes, which ``kubectl describe`` shows.

Scheduling never waits until an event is sent. An event that repeats within ten minutes increases
the count of the stored event. Namespaces are served round-robin. A full buffer drops the oldest
event of the namespace with the most events. So a namespace with thousands of events neither delays
nor displaces the events of other namespaces.
"""

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from gputile.api.conversion import timestamp_of
from gputile.api.core import ObjectReference
from gputile.kube.client import SYSTEM_CLOCK, Backoff, Clock, Connection
from gputile.kube.errors import ConnectionFailed, KubeError, NotFound, TooManyRequests

log = logging.getLogger(__name__)

_COMPONENT = "gputile"
_NAME_LENGTH = 253
_MESSAGE_BYTES = 1024  # the API server's limit
_WINDOW_SECONDS = 600.0
_PER_SECOND = 10.0
_BACKOFF = Backoff()


class EventKey(NamedTuple):
    """The identity of an event. ``message`` is empty if repetitions may differ in their message."""

    about: ObjectReference
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class Occurrences:
    """The occurrences of one event. ``stored_as`` is the name of the stored Event, if any."""

    first: datetime
    last: datetime
    seen_at: float  # seconds on the monotonic clock
    count: int = 1
    stored_as: str = ""
    message: str = ""

    def repeat(self, when: datetime, now: float, message: str) -> None:
        """Count one more occurrence. Its message replaces the previous message."""
        self.count += 1
        self.last, self.seen_at, self.message = when, now, message


_Queue = OrderedDict[EventKey, Occurrences]


class EventBuffer:
    """A queue of unsent events and a cache of sent events, of at most ``capacity`` events each."""

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self.recent = _Queue()  # sent events, oldest first
        self._capacity = capacity
        # Unsent events by namespace. The first namespace is served next.
        self._waiting: OrderedDict[str, _Queue] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: EventKey, when: datetime, now: float, message: str) -> None:
        """Add an occurrence at ``now`` (monotonic clock). If the buffer is full, drop an event."""
        queue = self._waiting.setdefault(key.about.namespace, _Queue())
        if key in queue:
            queue[key].repeat(when, now, message)
            return
        sent = self.recent.pop(key, None)
        if sent is not None and now - sent.seen_at < _WINDOW_SECONDS:
            sent.repeat(when, now, message)
            queue[key] = sent
        else:
            queue[key] = Occurrences(when, when, now, message=message)
        self._count += 1
        if self._count > self._capacity:
            self._pop_oldest(
                max(self._waiting, key=lambda namespace: len(self._waiting[namespace]))
            )
            self.dropped += 1

    def pop(self) -> tuple[EventKey, Occurrences]:
        """Remove and return the oldest event of the next namespace. The queue must not be empty."""
        namespace = next(iter(self._waiting))
        oldest = self._pop_oldest(namespace)
        if namespace in self._waiting:
            self._waiting.move_to_end(namespace)
        return oldest

    def requeue(self, key: EventKey, occurrences: Occurrences) -> None:
        """Put an event that could not be sent at the head of its namespace's queue.

        Other namespaces are served first, because the API server may limit only this namespace.
        """
        queue = self._waiting.setdefault(key.about.namespace, _Queue())
        newer = queue.get(key)
        if newer is not None:
            occurrences.count += newer.count
            occurrences.last, occurrences.message = newer.last, newer.message
        else:
            self._count += 1
        queue[key] = occurrences
        queue.move_to_end(key, last=False)

    def record_sent(self, key: EventKey, occurrences: Occurrences) -> None:
        """Cache a sent event, so that a repetition only increases the stored event's count."""
        newer = self._waiting.get(key.about.namespace, _Queue()).get(key)
        if newer is not None:
            newer.count += occurrences.count
            newer.first, newer.stored_as = occurrences.first, occurrences.stored_as
            return
        self.recent[key] = occurrences
        if len(self.recent) > self._capacity:
            self.recent.popitem(last=False)

    def _pop_oldest(self, namespace: str) -> tuple[EventKey, Occurrences]:
        queue = self._waiting[namespace]
        oldest = queue.popitem(last=False)
        self._count -= 1
        if not queue:
            del self._waiting[namespace]
        return oldest


class EventRecorder:
    """Accepts events at any rate. Sends up to ``burst`` at once, and then ten a second.

    ``instance`` identifies this process among its replicas. ``backoff`` determines the pauses after
    failures.
    """

    def __init__(
        self,
        connection: Connection,
        instance: str,
        *,
        capacity: int = 4096,
        burst: int = 50,
        backoff: Backoff = _BACKOFF,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.buffer = EventBuffer(capacity)
        self._connection = connection
        self._instance = instance
        self._burst = burst
        self._backoff = backoff
        self._clock = clock
        self._filled = asyncio.Event()

    def record(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
        *,
        latest: bool = False,
    ) -> None:
        """Queue an event about an object, and return at once.

        ``reason`` is a word in CamelCase. The first 1024 bytes of ``message`` are sent. With
        ``latest``, events that differ only in their message count as repetitions, and the latest
        message is shown. Use ``latest`` for messages with amounts that change often.
        """
        text = shortened(message)
        key = EventKey(about, kind, reason, "" if latest else text)
        self.buffer.add(key, self._clock.now(), self._clock.monotonic(), text)
        self._filled.set()

    async def run(self) -> NoReturn:
        failures = 0
        # Each event advances this time by 1 / _PER_SECOND. In a burst, it is ahead of the clock.
        paid_until = self._clock.monotonic()
        while True:
            while not self.buffer:
                self._filled.clear()
                await self._filled.wait()
            paid_until = max(paid_until, self._clock.monotonic())
            ahead = paid_until - self._clock.monotonic() - (self._burst - 1) / _PER_SECOND
            if ahead > 0:
                await self._clock.sleep(ahead)
            paid_until += 1 / _PER_SECOND
            key, occurrences = self.buffer.pop()
            try:
                await self._send(key, occurrences)
            except (ConnectionFailed, TooManyRequests) as error:
                self.buffer.requeue(key, occurrences)
                await self._clock.sleep(max(self._backoff.delay(failures), error.retry_after))
                failures += 1
            except KubeError as error:
                log.log(
                    logging.INFO if failures else logging.WARNING, "cannot send an Event: %s", error
                )
                failures += 1
            else:
                failures = 0
                self.buffer.record_sent(key, occurrences)

    async def _send(self, key: EventKey, occurrences: Occurrences) -> None:
        namespace = key.about.namespace or "default"  # for events about cluster-scoped objects
        collection = f"/api/v1/namespaces/{namespace}/events"
        if occurrences.stored_as:
            change: dict[str, Any] = {
                "count": occurrences.count,
                "lastTimestamp": timestamp_of(occurrences.last),
            }
            if not key.message:
                change["message"] = occurrences.message
            try:
                await self._connection.patch(
                    f"{collection}/{occurrences.stored_as}", msgspec.json.encode(change)
                )
                return
            except NotFound:
                log.debug("event %s has expired", occurrences.stored_as)
        suffix = f".{uuid.uuid4().hex[:16]}"
        name = key.about.name[: _NAME_LENGTH - len(suffix)].rstrip(".-") + suffix
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": key.about.api_version or "v1",
                "kind": key.about.kind,
                "namespace": key.about.namespace,
                "name": key.about.name,
                "uid": key.about.uid,
            },
            "type": key.type,
            "reason": key.reason,
            "message": occurrences.message,
            "count": occurrences.count,
            "firstTimestamp": timestamp_of(occurrences.first),
            "lastTimestamp": timestamp_of(occurrences.last),
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._instance,
        }
        await self._connection.post(collection, msgspec.json.encode(event))
        occurrences.stored_as = name


def shortened(message: str) -> str:
    """Return ``message`` as valid UTF-8 of at most 1024 bytes. An ellipsis marks a cut."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MESSAGE_BYTES:
        return encoded.decode()
    ellipsis = "…"
    return encoded[: _MESSAGE_BYTES - len(ellipsis.encode())].decode(errors="ignore") + ellipsis
