"""What events wait to be sent: aggregated, bounded, and without any I/O or clock of its own."""

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
    """Events by key: at most ``capacity`` to be sent, oldest first, and as many of those sent lately."""

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._waiting: OrderedDict[EventKey, Occurrences] = OrderedDict()
        self._sent: OrderedDict[EventKey, Occurrences] = OrderedDict()

    @property
    def remembered(self) -> int:
        """How many Events were sent that are still known."""
        return len(self._sent)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: EventKey, about: ObjectReference, when: datetime, now: float, message: str = "") -> None:
        """Add one occurrence, at ``now`` of the monotonic clock; where the box is full the oldest event is dropped.

        ``message`` is what it says, where that is not in the key.
        """
        message = message or key.message
        waiting = self._waiting.get(key)
        if waiting is not None:
            _again(waiting, when, now, message)
            return
        sent = self._sent.pop(key, None)
        if sent is not None and now - sent.seen_at < WINDOW_SECONDS:
            _again(sent, when, now, message)
            self._waiting[key] = sent
        else:
            self._waiting[key] = Occurrences(about, when, when, now, message=message)
        if len(self._waiting) > self._capacity:
            self._waiting.popitem(last=False)
            self.dropped += 1

    def take(self) -> tuple[EventKey, Occurrences]:
        """Remove and return the oldest event.

        Raises:
            KeyError: there is none.
        """
        return self._waiting.popitem(last=False)

    def put_back(self, key: EventKey, occurrences: Occurrences) -> None:
        """Return what :meth:`take` gave because it could not be sent; it is next again."""
        since = self._waiting.pop(key, None)
        if since is not None:
            occurrences.count += since.count
            occurrences.last = since.last
            occurrences.message = since.message
        self._waiting[key] = occurrences
        self._waiting.move_to_end(key, last=False)

    def sent(self, key: EventKey, occurrences: Occurrences) -> None:
        """Remember what was sent, so that the same event again only counts up."""
        since = self._waiting.get(key)
        if since is not None:
            since.count += occurrences.count
            since.first = occurrences.first
            since.stored_as = occurrences.stored_as
            return
        self._sent[key] = occurrences
        if len(self._sent) > self._capacity:
            self._sent.popitem(last=False)


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
