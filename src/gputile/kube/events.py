"""Sends events on pods and nodes, as ``kubectl describe`` shows them. Scheduling never waits for them."""

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from gputile.api.core import ObjectReference
from gputile.api.timestamps import timestamp_of
from gputile.kube.client import Connection
from gputile.kube.errors import ConnectionFailed, KubeError, NotFound, TooManyRequests
from gputile.kube.timing import SYSTEM_CLOCK, Backoff, Clock

WINDOW_SECONDS = 600.0  # the same event again within this time only counts up
MESSAGE_BYTES = 1024  # the API server's limit


class EventKey(NamedTuple):
    """What makes two events the same; ``message`` is "" where the latest message replaces those before."""

    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class Occurrences:
    """How often an event has happened. ``stored_as`` is the name of its object in the cluster, "" before it has one."""

    about: ObjectReference
    first: datetime
    last: datetime
    seen_at: float  # monotonic
    count: int = 1
    stored_as: str = ""
    message: str = ""


class EventBuffer:
    """Events by key: at most ``capacity`` to be sent, and as many of those sent lately.

    Namespaces take turns, and each sends its oldest first. Where too many wait, the namespace with the most of them
    loses its oldest. So whoever makes events by the thousand delays and drops his own, not those of others.
    """

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._waiting: OrderedDict[str, OrderedDict[EventKey, Occurrences]] = OrderedDict()  # by namespace, next first
        self._count = 0
        self._sent: OrderedDict[EventKey, Occurrences] = OrderedDict()

    @property
    def remembered(self) -> int:
        """How many Events were sent that are still known."""
        return len(self._sent)

    def __len__(self) -> int:
        return self._count

    def put(self, key: EventKey, about: ObjectReference, when: datetime, now: float, message: str = "") -> None:
        """Add one occurrence, at ``now`` of the monotonic clock; where too many wait one is dropped.

        ``message`` is what it says, where that is not in the key.
        """
        message = message or key.message
        queue = self._waiting.setdefault(key.namespace, OrderedDict())
        waiting = queue.get(key)
        if waiting is not None:
            _again(waiting, when, now, message)
            return
        sent = self._sent.pop(key, None)
        if sent is not None and now - sent.seen_at < WINDOW_SECONDS:
            _again(sent, when, now, message)
            queue[key] = sent
        else:
            queue[key] = Occurrences(about, when, when, now, message=message)
        self._count += 1
        if self._count > self._capacity:
            self._pop(max(self._waiting, key=lambda namespace: len(self._waiting[namespace])))
            self.dropped += 1

    def take(self) -> tuple[EventKey, Occurrences]:
        """Remove and return the oldest event of the namespace whose turn it is.

        Raises:
            StopIteration: there is none.
        """
        namespace = next(iter(self._waiting))
        taken = self._pop(namespace)
        if namespace in self._waiting:
            self._waiting.move_to_end(namespace)
        return taken

    def put_back(self, key: EventKey, occurrences: Occurrences) -> None:
        """Return what ``take`` gave because it could not be sent; it is the next one of its namespace.

        Other namespaces go first: the API server may be limiting this one alone.
        """
        queue = self._waiting.setdefault(key.namespace, OrderedDict())
        since = queue.get(key)
        if since is not None:
            occurrences.count += since.count
            occurrences.last = since.last
            occurrences.message = since.message
        else:
            self._count += 1
        queue[key] = occurrences
        queue.move_to_end(key, last=False)

    def sent(self, key: EventKey, occurrences: Occurrences) -> None:
        """Remember what was sent, so that its next occurrence only raises the count of the stored event."""
        since = self._waiting.get(key.namespace, OrderedDict[EventKey, Occurrences]()).get(key)
        if since is not None:
            since.count += occurrences.count
            since.first = occurrences.first
            since.stored_as = occurrences.stored_as
            return
        self._sent[key] = occurrences
        if len(self._sent) > self._capacity:
            self._sent.popitem(last=False)

    def _pop(self, namespace: str) -> tuple[EventKey, Occurrences]:
        """Remove and return the oldest event of a namespace that has one."""
        queue = self._waiting[namespace]
        oldest = queue.popitem(last=False)
        self._count -= 1
        if not queue:
            del self._waiting[namespace]
        return oldest


def shortened(message: str) -> str:
    """Return ``message`` as valid UTF-8 of at most 1024 bytes; what was cut shows as an ellipsis."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= MESSAGE_BYTES:
        return encoded.decode()
    ellipsis = "…"
    return encoded[: MESSAGE_BYTES - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


def _again(occurrences: Occurrences, when: datetime, now: float, message: str) -> None:
    occurrences.count += 1
    occurrences.message = message
    occurrences.last = when
    occurrences.seen_at = now


log = logging.getLogger(__name__)

COMPONENT = "gputile"
NAME_LENGTH = 253


@dataclass(frozen=True, slots=True)
class EventLimits:
    """How many events are sent: ``per_second`` on average, ``burst`` at once; at most ``capacity`` wait for that.

    After a failure as long as ``backoff`` says goes by before the next attempt.
    """

    per_second: float = 10.0
    burst: int = 50
    capacity: int = 4096
    backoff: Backoff = field(default_factory=Backoff)


_LIMITS = EventLimits()


class EventRecorder:
    """Takes events at any rate and sends them within ``limits``.

    ``instance`` names this process among its like. ``failed`` and ``dropped`` count the events that were not sent,
    because the API server refused them and because too many were waiting. Namespaces take turns.
    """

    def __init__(
        self,
        connection: Connection,
        instance: str,
        *,
        limits: EventLimits = _LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.failed = 0
        self._connection = connection
        self._instance = instance
        self._limits = limits
        self._box = EventBuffer(limits.capacity)
        self._clock = clock
        self._filled = asyncio.Event()

    @property
    def dropped(self) -> int:
        """How many events were dropped because too many were waiting."""
        return self._box.dropped

    @property
    def remembered(self) -> int:
        """How many Events were written that the same again would count up."""
        return self._box.remembered

    @property
    def waiting(self) -> int:
        """How many events are to be sent; occurrences of the same event count once."""
        return len(self._box)

    def record(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
        *,
        latest: bool = False,
    ) -> None:
        """Say something about an object. Returns at once; the same again within ten minutes only counts up.

        ``reason`` is one word in CamelCase; of ``message`` the first 1024 bytes are sent. With ``latest`` an event of
        the same reason is the same whatever it says, and what was said last stands: for messages with amounts that
        change all the time.
        """
        text = shortened(message)
        key = EventKey(about.kind, about.namespace, about.name, about.uid, kind, reason, "" if latest else text)
        self._box.put(key, about, self._clock.now(), self._clock.monotonic(), text)
        self._filled.set()

    async def run(self) -> NoReturn:
        """Send what is recorded, until cancelled."""
        limits, failures = self._limits, 0
        paid_until = self._clock.monotonic()  # each event pays for 1 / per_second; a burst may run ahead of the clock
        while True:
            await self._until_filled()
            paid_until = max(paid_until, self._clock.monotonic())
            ahead = paid_until - self._clock.monotonic() - (limits.burst - 1) / limits.per_second
            if ahead > 0:
                await self._clock.sleep(ahead)
            paid_until += 1 / limits.per_second
            key, occurrences = self._box.take()
            try:
                await self._send(key, occurrences)
            except (ConnectionFailed, TooManyRequests) as error:
                self._box.put_back(key, occurrences)
                await self._clock.sleep(max(self._limits.backoff.delay(failures), error.retry_after))
                failures += 1
                continue
            except KubeError as error:
                self.failed += 1
                log.log(logging.INFO if failures else logging.WARNING, "an event was not sent: %s", error)
                failures += 1
                continue
            failures = 0
            self._box.sent(key, occurrences)

    async def _until_filled(self) -> None:
        while not self._box:
            self._filled.clear()
            await self._filled.wait()

    async def _send(self, key: EventKey, occurrences: Occurrences) -> None:
        # the events of cluster-scoped objects live in the default namespace
        collection = f"/api/v1/namespaces/{key.namespace or 'default'}/events"
        if occurrences.stored_as:
            change: dict[str, Any] = {"count": occurrences.count, "lastTimestamp": timestamp_of(occurrences.last)}
            if not key.message:
                change["message"] = occurrences.message
            try:
                await self._connection.patch(f"{collection}/{occurrences.stored_as}", msgspec.json.encode(change))
                return
            except NotFound:
                log.debug("event %s has expired", occurrences.stored_as)
        suffix = f".{uuid.uuid4().hex[:16]}"
        name = key.name[: NAME_LENGTH - len(suffix)].rstrip(".-") + suffix
        body = self._event(name, collection.split("/")[4], key, occurrences)
        await self._connection.post(collection, msgspec.json.encode(body))
        occurrences.stored_as = name

    def _event(self, name: str, namespace: str, key: EventKey, occurrences: Occurrences) -> dict[str, Any]:
        about = occurrences.about
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version or "v1",
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": key.type,
            "reason": key.reason,
            "message": occurrences.message,
            "count": occurrences.count,
            "firstTimestamp": timestamp_of(occurrences.first),
            "lastTimestamp": timestamp_of(occurrences.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
