"""Limits how much of the arbiter's time containers get, however much their processes send.

No I/O; the clock is given.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

# An honest container is never kept waiting. At the end of a turn each of the 64 processes that have it says BUSY, DONE
# and perhaps WANT: 192 messages at once, and 6,400 a second in turns of 30 ms that all of them share and nobody else
# has a part of. At some 25 us each, a container that floods takes a fifth of a core, and others wait some 6 ms for it.
# One about GPUs that containers use together costs as much as several, and counts as many (``NodeTimeSlices.cost``).
MESSAGES_AT_ONCE: Final = 256
MESSAGES_PER_S: Final = 8000
# Of a container with several GPUs. What eight processes say that have a GPU each, beside such a container, counts as
# 120 a turn.
MESSAGES_AT_ONCE_SEVERAL: Final = 512
MESSAGES_PER_S_SEVERAL: Final = 16_000
# All containers of a node together: half a core.
NODE_MESSAGES_AT_ONCE: Final = 512
NODE_MESSAGES_PER_S: Final = 20_000
WINDOW_S: Final = 0.01


@dataclass(slots=True)
class TokenBucket:
    """``most`` at once, of which ``per_second`` come back. Times are seconds of any clock."""

    most: int
    per_second: int
    _level: float = field(init=False)
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._level = self.most

    def left(self, now: float) -> int:
        """Return how many there are at ``now``; 0 also where more than there were have been spent."""
        self._level = min(self.most, self._level + (now - self._at) * self.per_second)
        self._at = now
        return max(0, int(self._level))

    @property
    def rest(self) -> int:
        """How many there were when that was last asked, less what was spent since."""
        return max(0, int(self._level))

    def spend(self, number: int) -> None:
        self._level = max(self._level - number, -float(self.most))


class Pool:
    """What all containers of a node may spend together: ``most`` at once, of which ``per_second`` come back.

    Each has an equal part for certain; what others leave of theirs is divided among those that want more. So those
    that want little are not kept waiting by those that want much, however many these are.
    """

    def __init__(self, most: int, per_second: int) -> None:
        self._per_second = per_second
        self._spare = TokenBucket(most, per_second)
        self._parts = 0
        self._hungry: set[PoolShare] = set()

    def part(self, most: int, per_second: int) -> "PoolShare":
        """Return the part of a container that is new, which may spend so many by itself."""
        self._parts += 1
        return PoolShare(self, most, per_second)

    def give_up(self, part: "PoolShare") -> None:
        """Divide among the others what a container had that is gone."""
        self._parts -= 1
        self._hungry.discard(part)

    @property
    def each(self) -> int:
        """How many come back to each container in a second, whatever the others do."""
        return max(1, self._per_second // max(1, self._parts))

    def spare(self, part: "PoolShare", certain: int, now: float) -> int:
        """Return how many a container may spend that has ``certain`` left of its own."""
        spare = self._spare.left(now)
        if certain:
            self._hungry.discard(part)
            return certain
        self._hungry.add(part)
        return -(-spare // len(self._hungry))

    def spend(self, number: int) -> None:
        self._spare.spend(number)


class PoolShare:
    """One container's part of a pool: ``most`` at once and ``per_second`` is all that it ever gets."""

    def __init__(self, pool: Pool, most: int, per_second: int) -> None:
        self._pool = pool
        self._own = TokenBucket(most, per_second)
        self._certain = TokenBucket(most, per_second)

    def left(self, now: float) -> int:
        """Return how many it may spend at ``now``."""
        self._certain.per_second = self._pool.each
        own, certain = self._own.left(now), self._certain.left(now)
        return min(own, self._pool.spare(self, certain, now)) if own else 0

    def spend(self, number: int) -> None:
        self._own.spend(number)
        self._certain.spend(min(number, self._certain.rest))
        self._pool.spend(number)


class TimerLoop(Protocol):
    """What ``ConnectionQueue`` needs of an event loop."""

    def time(self) -> float:
        """Return the time, in seconds."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object:
        """Call back in ``delay`` seconds."""


class Speaker(Protocol):
    """A connection with a buffer of its own."""

    @property
    def whole(self) -> int:
        """How many whole messages it has that are not handled; none once it is to end."""

    def handle(self, most: int) -> int:
        """Handle the oldest until they count as ``most`` or more, or none is left; return as how many they counted."""

    def pause(self) -> None:
        """Read no more for the time being."""

    def resume(self) -> None:
        """Read again."""

    def end_if_gone(self) -> None:
        """End it if nobody is at its other end any more."""


class ConnectionQueue:
    """The connections of one container. Those that find the allowance used up wait in line, and are not read meanwhile.

    With what comes back, each in turn has what it has read handled. A connection that is not read does not show that
    its process has died: that is looked for when its turn comes. With 512 connections that have 16 messages each it
    comes in a second.
    """

    def __init__(self, clock: TimerLoop, allowance: TokenBucket | PoolShare | None = None) -> None:
        self._clock = clock
        self._allowance = allowance or TokenBucket(MESSAGES_AT_ONCE, MESSAGES_PER_S)
        self._waiting: deque[Speaker] = deque()
        self._called = False

    def read(self, speaker: Speaker) -> None:
        """Handle what ``speaker`` has read, now or when its turn comes."""
        left = 0 if self._waiting else self._allowance.left(self._clock.time())
        if left:
            self._handle(speaker, left)
            if not speaker.whole:
                return
        speaker.pause()
        self._waiting.append(speaker)
        self._call()

    def leave(self, speaker: Speaker) -> None:
        if speaker in self._waiting:
            self._waiting.remove(speaker)

    def _handle(self, speaker: Speaker, most: int) -> None:
        # A part of a message has to be read as well: it counts as one.
        self._allowance.spend(max(1, speaker.handle(most)))

    def _serve(self) -> None:
        self._called = False
        try:
            while self._waiting and (left := self._allowance.left(self._clock.time())):
                speaker = self._waiting[0]
                speaker.end_if_gone()
                self._handle(speaker, left)
                if not speaker.whole:
                    self._waiting.popleft()
                    speaker.resume()
        finally:
            self._call()

    def _call(self) -> None:
        if self._waiting and not self._called:
            self._called = True
            self._clock.call_later(WINDOW_S, self._serve)
