"""Aggregates the events that wait to be sent, in bounds, without any I/O or clock of its own."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from gputile.api.core import ObjectReference

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
