"""For which gang GPUs are reserved that it cannot use yet, and for how long: no gang reserves GPUs for ever.

A gang waits before GPUs are reserved for it. When that has lasted for long enough without a start, the reservations
are removed, no gang gets any for a while, and this gang waits twice as long before the next time. A search that gave
up does not know whether its gang could start even in the empty cluster: its reservations last no longer than it had
to wait.
"""

from dataclasses import dataclass

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.core.devices.gang_membership import GangName

_SECOND = 10**9
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class _GaveWay:
    """How often GPUs were reserved for a gang in vain, and when that ended last, Unix time in nanoseconds."""

    times: int
    at_ns: int


class StarvationTimeout:
    """Keeps the account of one planner; times are Unix time in nanoseconds."""

    def __init__(self, settings: GangConfiguration) -> None:
        self._settings = settings
        self._starved: GangName | None = None
        self._since_ns: int | None = None  # since when GPUs are reserved, for whichever gang, without a start
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
        if self._since_ns is None or self._starved is None or now_ns < self._since_ns + int(self._seconds * _SECOND):
            return
        before = self._gave_way.get(self._starved)
        self._gave_way[self._starved] = _GaveWay(before.times + 1 if before else 1, now_ns)
        self._rest_until_ns = now_ns + self._settings.patience_seconds * _SECOND
        self._starved = self._since_ns = None

    def has_passed(self, gang: GangName, complete_at: float, now_ns: int) -> bool:
        """Return whether a gang that was complete at ``complete_at``, in seconds, has waited for long enough."""
        if now_ns < self._rest_until_ns:
            return False
        gave_way = self._gave_way.get(gang)
        since, factor = complete_at, 1
        if gave_way is not None:
            since = max(since, min(gave_way.at_ns, now_ns) / _SECOND)
            factor = 1 << min(gave_way.times, _MOST_DOUBLINGS)
        return now_ns / _SECOND - since > self._settings.patience_seconds * factor

    def reserve(self, gang: GangName, now_ns: int, *, certain: bool) -> None:
        """Note that GPUs are reserved for ``gang`` from now on, or still are; ``certain``: it could start some day."""
        if self._since_ns is None:
            self._since_ns = now_ns
        self._starved = gang
        longest = self._settings.keep_seconds
        self._seconds = longest if certain else min(longest, self._settings.patience_seconds)

    def end(self, gang: GangName | None = None) -> None:
        """Note that no gang waits with reservations, or that ``gang`` does not any more, since it starts."""
        if gang is None or gang == self._starved:
            self._starved = self._since_ns = None
