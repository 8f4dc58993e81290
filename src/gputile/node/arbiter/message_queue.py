"""Limits how much of the arbiter's time containers get, however much their processes send.

In each window of time every container is sure of an equal part, and as much again as all of that together goes to
whoever wants more, one container after the other. What is handled at once can be more than was left; it is taken from
the next windows. So a container that says little is served at once, whatever others send; those that flood wait for the
next window, and slow each other first.

No I/O; the event loop is given.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

# Messages at some 25 us each: half a core at most. An honest container never waits: at the end of a turn each of the 64
# processes that have it says BUSY, DONE and perhaps WANT, 192 messages in all.
WINDOW_S: Final = 0.02
SURE: Final = 200  # a window, of all containers together
SHARED: Final = 200
AT_ONCE: Final = 16  # of one source, before it is another's turn


class MessageSource(Protocol):
    """What has messages of a ``container``: a connection, or the socket at which new ones arrive."""

    container: str

    @property
    def whole(self) -> int:
        """How many whole messages have been read and not handled."""

    def handle(self, most: int) -> int:
        """Handle messages until they count as ``most`` or more, or none is left; return as how many they counted."""

    def pause(self) -> None:
        """Read no more."""

    def resume(self) -> None:
        """Go on reading."""

    def end_if_gone(self) -> None:
        """End what nobody is at the other end of: while it is not read that does not show."""


class QueueClock(Protocol):
    """What of an event loop is needed."""

    def time(self) -> float:
        """Return the time in seconds."""

    def call_at(self, when: float, callback: Callable[[], None], /) -> object:
        """Call back at ``when``."""


class MessageQueue:
    """The sources of all containers that have messages for which there is no room left in this window.

    ``containers`` is how many there are.
    """

    def __init__(self, loop: QueueClock) -> None:
        self.containers = 1
        self._loop = loop
        self._waiting: dict[str, deque[MessageSource]] = {}  # the container whose turn is next is the first
        self._window_end = 0.0
        self._spent: dict[str, float] = {}
        self._shared = 0.0
        self._called = False

    def read(self, source: MessageSource) -> None:
        """Handle what ``source`` has read, now or when its turn comes."""
        self._begin_window()
        if self._is_sure(source.container) or (self._shared < SHARED and not self._waiting):
            self._handle(source)
            if not source.whole:
                return
        source.pause()
        self._waiting.setdefault(source.container, deque()).append(source)
        self._call()

    def leave(self, source: MessageSource) -> None:
        line = self._waiting.get(source.container, deque())
        if source in line:
            line.remove(source)
            if not line:
                del self._waiting[source.container]

    def _begin_window(self) -> None:
        now = self._loop.time()
        if now >= self._window_end:
            windows = 1 + (now - self._window_end) // WINDOW_S
            self._window_end = now + WINDOW_S
            sure = windows * SURE / self.containers
            self._spent = {container: spent - sure for container, spent in self._spent.items() if spent > sure}
            self._shared = max(0, self._shared - windows * SHARED)

    def _is_sure(self, container: str) -> bool:
        return self._spent.get(container, 0.0) * self.containers < SURE

    def _handle(self, source: MessageSource) -> None:
        cost = max(1, source.handle(AT_ONCE))  # a part of a message has to be read as well: it counts as one
        if self._is_sure(source.container):
            self._spent[source.container] = self._spent.get(source.container, 0.0) + cost
        else:
            self._shared += cost

    def _next(self) -> str | None:
        """Return the container whose turn it is, None if there is no room for any that waits."""
        first = next(iter(self._waiting), None) if self._shared < SHARED else None
        return next((container for container in self._waiting if self._is_sure(container)), first)

    def _serve(self) -> None:
        """Serve one that waits; the event loop looks at the others before the next."""
        self._called = False
        self._begin_window()
        container = self._next()
        try:
            if container is not None:
                line = self._waiting.pop(container)
                source = line.popleft()
                if line:
                    self._waiting[container] = line
                source.end_if_gone()
                self._handle(source)
                if source.whole:
                    self._waiting.setdefault(container, deque()).append(source)
                else:
                    source.resume()
        finally:
            self._call()

    def _call(self) -> None:
        if self._waiting and not self._called:
            self._called = True
            self._loop.call_at(self._window_end if self._next() is None else self._loop.time(), self._serve)
