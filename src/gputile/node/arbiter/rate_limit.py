"""Limits how much of the arbiter's time containers get, however much their processes send.

No I/O; the clock is given.
"""

from dataclasses import dataclass, field
from typing import Final

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
