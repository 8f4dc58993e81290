"""For which gang cards are kept that it cannot use yet, and for how long: nobody keeps cards for ever.

A gang waits before cards are kept for it. When they have been kept for long enough without a start, they are given
back, nobody keeps any for a while, and this gang waits twice as long before the next time. A search that gave up does
not know whether its gang could start even in the empty cluster: for it cards are kept no longer than it had to wait.
"""

from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Gangs
from gputile.core.devices.gang_membership import GangName

_SECOND = 10**9
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class _GaveWay:
    """How often cards were kept for a gang in vain, and when that ended last, Unix time in nanoseconds."""

    times: int
    at_ns: int


class StarvationTimeout:
    """Keeps the account for one planner; times are Unix time in nanoseconds."""

    def __init__(self, settings: Gangs) -> None:
        self._settings = settings
        self._keeper: GangName | None = None
        self._since_ns: int | None = None  # since when cards are kept, for whomever, and nobody has started with them
        self._seconds = 0.0
        self._rest_until_ns = 0
        self._gave_way: dict[GangName, _GaveWay] = {}

    def __len__(self) -> int:
        return len(self._gave_way)

    def begin(self, gangs: set[GangName], now_ns: int) -> None:
        """Begin a round: forget the gangs that are gone, and end what has lasted for too long.

        Where a clock was set back, what lies ahead began now.
        """
        for name in self._gave_way.keys() - gangs:
            del self._gave_way[name]
        self._rest_until_ns = min(self._rest_until_ns, now_ns + self._settings.patience_seconds * _SECOND)
        if self._since_ns is not None:
            self._since_ns = min(self._since_ns, now_ns)
        if self._since_ns is None or self._keeper is None or now_ns < self._since_ns + int(self._seconds * _SECOND):
            return
        before = self._gave_way.get(self._keeper)
        self._gave_way[self._keeper] = _GaveWay(before.times + 1 if before else 1, now_ns)
        self._rest_until_ns = now_ns + self._settings.patience_seconds * _SECOND
        self._keeper = self._since_ns = None

    def is_over(self, gang: GangName, complete_at: float, now_ns: int) -> bool:
        """Return whether a gang that was complete at ``complete_at``, in seconds, has waited for long enough."""
        if now_ns < self._rest_until_ns:
            return False
        gave_way = self._gave_way.get(gang)
        since, factor = complete_at, 1
        if gave_way is not None:
            since = max(since, min(gave_way.at_ns, now_ns) / _SECOND)
            factor = 1 << min(gave_way.times, _MOST_DOUBLINGS)
        return now_ns / _SECOND - since > self._settings.patience_seconds * factor

    def keep(self, gang: GangName, now_ns: int, *, certain: bool) -> None:
        """Note that cards are kept for ``gang`` from now on, or still are; ``certain``: it could start some day."""
        if self._since_ns is None:
            self._since_ns = now_ns
        self._keeper = gang
        longest = self._settings.keep_seconds
        self._seconds = longest if certain else min(longest, self._settings.patience_seconds)

    def end(self, gang: GangName | None = None) -> None:
        """Note that nobody keeps cards, or that ``gang`` needs them no more, since it starts."""
        if gang is None or gang == self._keeper:
            self._keeper = self._since_ns = None
