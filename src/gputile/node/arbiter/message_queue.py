"""Prevents containers that send many messages from delaying the messages of other containers.

Time is divided into windows. In each window, ``GUARANTEED`` messages are divided equally among all
containers. Up to ``SHARED`` further messages are handled for containers that send more, one
container after the other. If a container exceeds the limits of a window, the excess counts in the
next windows. So a container that sends few messages is served at once. Containers that flood the
arbiter wait for the next window, and delay each other before they delay other containers.

This module does no I/O. The event loop is a parameter.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

# A message takes about 25 us, so at these limits the arbiter uses half a core. A container that
# follows the protocol never waits. At the end of a turn, each of the at most 64 processes that hold
# the turn sends at most BUSY, DONE and WANT, which is 192 messages in all.
WINDOW_S: Final = 0.02
GUARANTEED: Final = 200  # messages per window that are divided among all containers
SHARED: Final = 200  # messages per window that all containers may use
AT_ONCE: Final = 16  # messages from one source before the next source is served


class MessageSource(Protocol):
    """A connection or a listening socket of a ``container``.

    The source calls ``MessageQueue.submit`` whenever it can be read and is not paused.
    """

    container: str

    def handle(self, most: int) -> int:
        """Handle messages until none is left or their cost reaches ``most``. Return the cost."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Resume reading, unless the source is closed."""

    def close_if_hung_up(self) -> None:
        """Close the source if its peer has hung up. A paused source does not notice this itself."""


class QueueClock(Protocol):
    """The methods of an event loop that the queue needs."""

    def time(self) -> float:
        """Return the current time in seconds."""

    def call_at(self, when: float, callback: Callable[[], None], /) -> object:
        """Call ``callback`` at the time ``when``."""


class MessageQueue:
    """Handles messages, and queues the sources of containers that exceed the window's limits.

    ``containers`` is the number of containers that share the guaranteed messages.
    """

    def __init__(self, loop: QueueClock) -> None:
        self.containers = 1
        self._loop = loop
        self._waiting: dict[str, deque[MessageSource]] = {}  # by container, the next one first
        self._window_end = 0.0
        self._spent: dict[str, float] = {}
        self._shared = 0.0
        self._scheduled = False

    def submit(self, source: MessageSource) -> None:
        """Handle messages of ``source``, or queue it if its container exceeds the limits."""
        self._begin_window()
        may_share = self._shared < SHARED and not self._waiting
        if source.container not in self._waiting and (
            self._has_guarantee(source.container) or may_share
        ):
            self._handle(source)
        else:
            source.pause()
            self._waiting.setdefault(source.container, deque()).append(source)
            self._schedule()

    def discard(self, source: MessageSource) -> None:
        sources = self._waiting.get(source.container, deque())
        if source in sources:
            sources.remove(source)
            if not sources:
                del self._waiting[source.container]

    def _begin_window(self) -> None:
        now = self._loop.time()
        if now >= self._window_end:
            windows = 1 + (now - self._window_end) // WINDOW_S
            self._window_end = now + WINDOW_S
            guaranteed = windows * GUARANTEED / self.containers
            self._spent = {
                container: spent - guaranteed
                for container, spent in self._spent.items()
                if spent > guaranteed
            }
            self._shared = max(0, self._shared - windows * SHARED)

    def _has_guarantee(self, container: str) -> bool:
        return self._spent.get(container, 0.0) * self.containers < GUARANTEED

    def _handle(self, source: MessageSource) -> None:
        cost = max(1, source.handle(AT_ONCE))  # an incomplete message costs as much as a message
        if self._has_guarantee(source.container):
            self._spent[source.container] = self._spent.get(source.container, 0.0) + cost
        else:
            self._shared += cost

    def _next(self) -> str | None:
        """Return the next container to serve, or None if all waiting ones exceed the limits."""
        first = next(iter(self._waiting), None) if self._shared < SHARED else None
        return next(
            (container for container in self._waiting if self._has_guarantee(container)), first
        )

    def _serve(self) -> None:
        """Serve one queued source. The event loop handles other events before the next one."""
        self._scheduled = False
        self._begin_window()
        container = self._next()
        try:
            if container is not None:
                sources = self._waiting.pop(container)
                source = sources.popleft()
                if sources:
                    self._waiting[container] = sources
                source.close_if_hung_up()
                self._handle(source)
                source.resume()
        finally:
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_at(
                self._window_end if self._next() is None else self._loop.time(), self._serve
            )
