"""Limits how long GPUs stay reserved that nobody uses: no gang reserves GPUs for ever.

A gang reserves GPUs in vain while it has some and cannot start: because there are too few, or because kube-scheduler
has not begun its plan in time. When that has lasted for long enough, no gang reserves any in vain for as long again. A
gang for which there are too few waits before it reserves any, and twice as long before each further time. A search that
gave up does not know whether its gang could start even in the empty cluster: then GPUs are reserved for no longer than
the gang had to wait.

One number tells how much longer GPUs were reserved in vain than not: it grows while they are, and falls while they are
not, to 0 at least. It never exceeds the longest time allowed, so of any time t GPUs are reserved in vain for
(t + longest) / 2 at most, whatever gangs come and go. The account outlives the process that keeps it: the leader
leaves it to the next one as a text (``StarvationAccount``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.versioned_codec import VersionedCodec

_SECOND = 10**9
_MOST_DOUBLINGS = 10
_GAVE_WAY_TOLD = 32  # of how many gangs the next leader is told that they gave way: the latest ones
_VERSION = 1
_Count = Annotated[int, msgspec.Meta(ge=0)]


class AccountError(ValueError):
    """The account of an earlier leader cannot be read."""


class _GangGaveWay(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How often GPUs were reserved for a gang in vain, and when that ended last, Unix time in nanoseconds."""

    namespace: str
    name: str
    times: _Count
    at_ns: _Count
    by_object: bool = False


class StarvationAccount(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a leader leaves to the next one; see ``StarvationTimeout`` for the fields."""

    at_ns: _Count
    debt_ns: _Count = 0
    reserving: bool = False
    resting: bool = False
    gave_way: tuple[_GangGaveWay, ...] = ()
    version: int = _VERSION


_CODEC = VersionedCodec(StarvationAccount, _VERSION, AccountError, lambda account: account)


@dataclass(frozen=True, slots=True)
class _GaveWay:
    times: int
    at_ns: int


class StarvationTimeout:
    """Keeps the account of one planner; times are Unix time in nanoseconds.

    ``_debt_ns`` is how much longer GPUs were reserved in vain than not, as of ``_at_ns``. ``_gangs`` are those that
    reserve some in vain since then, and ``_reserving`` tells that there are any; in the first round of a leader only
    the one before knows which. ``_starved`` is the one of them that there are too few GPUs for. While it is
    ``resting``, until the debt is paid, no gang gets any.
    """

    def __init__(self, settings: GangConfiguration) -> None:
        self._patience_ns = settings.patience_seconds * _SECOND
        self._longest_ns = settings.keep_seconds * _SECOND
        # What is reserved when the time is over stays until it ends.
        self._most_ns = max(self._patience_ns, self._longest_ns) + settings.hold_seconds * _SECOND
        self.resting = False
        self._at_ns: int | None = None
        self._debt_ns = 0
        self._reserving = False
        self._gangs: set[GangName] = set()
        self._noted: set[GangName] = set()
        self._starved: GangName | None = None
        self._limit_ns = self._longest_ns
        self._gave_way: dict[GangName, _GaveWay] = {}

    def __len__(self) -> int:
        return len(self._gave_way)

    def account(self) -> str:
        """Return what the next leader is to know, "" where there is nothing."""
        if not (self._reserving or self._debt_ns or self._gave_way):
            return ""
        latest = sorted(self._gave_way.items(), key=lambda item: (item[1].at_ns, item[0]))[-_GAVE_WAY_TOLD:]
        return _CODEC.encode(
            StarvationAccount(
                at_ns=self._at_ns or 0,
                debt_ns=self._debt_ns,
                reserving=self._reserving,
                resting=self.resting,
                gave_way=tuple(
                    _GangGaveWay(name.namespace, name.name, gave_way.times, gave_way.at_ns, name.by_object)
                    for name, gave_way in latest
                ),
            )
        )

    def resume(self, text: str) -> None:
        """Go on with the account of the leader before; ``text`` is "" where there was none.

        Raises:
            AccountError: it cannot be read; nothing has changed.
        """
        account = _CODEC.decode(text) if text else StarvationAccount(at_ns=0)
        self._at_ns = account.at_ns if text else None
        self._debt_ns, self._reserving = min(account.debt_ns, self._most_ns), account.reserving
        self.resting = account.resting
        self._gangs, self._noted, self._starved, self._limit_ns = set(), set(), None, self._longest_ns
        self._gave_way = {
            GangName(each.namespace, each.name, each.by_object): _GaveWay(each.times, each.at_ns)
            for each in account.gave_way[:_GAVE_WAY_TOLD]
        }

    def begin(self, gangs: set[GangName], now_ns: int) -> None:
        """Begin a round: forget the gangs that are gone, and end what has lasted for too long.

        A clock that was set back has not moved.
        """
        for name in self._gave_way.keys() - gangs:
            del self._gave_way[name]
        for name, gave_way in self._gave_way.items():
            self._gave_way[name] = _GaveWay(gave_way.times, min(gave_way.at_ns, now_ns))
        elapsed_ns = max(0, now_ns - self._at_ns) if self._at_ns is not None else 0
        self._at_ns, self._noted = now_ns, set()
        change_ns = elapsed_ns if self._reserving else -elapsed_ns
        self._debt_ns = min(max(0, self._debt_ns + change_ns), self._most_ns)
        self.resting = self.resting and self._debt_ns > 0
        if self._reserving and not self.resting and self._debt_ns >= self._limit_ns:
            if self._starved is not None:
                before = self._gave_way.get(self._starved)
                self._gave_way[self._starved] = _GaveWay(before.times + 1 if before else 1, now_ns)
            self._debt_ns = max(self._debt_ns, self._patience_ns)
            self.resting = True

    def has_passed(self, gang: GangName, complete_at: float, now_ns: int) -> bool:
        """Return whether a gang that was complete at ``complete_at``, in seconds, has waited for long enough."""
        if self.resting:
            return False
        gave_way = self._gave_way.get(gang)
        since, factor = complete_at, 1
        if gave_way is not None:
            since = max(since, gave_way.at_ns / _SECOND)
            factor = 1 << min(gave_way.times, _MOST_DOUBLINGS)
        return (now_ns / _SECOND - since) * _SECOND > self._patience_ns * factor

    def reserves(self, gang: GangName) -> bool:
        return gang in self._gangs

    def starve(self, gang: GangName, *, certain: bool) -> None:
        """Note that GPUs are reserved for ``gang``, and too few; ``certain``: it could start some day."""
        self._starved = gang
        self._limit_ns = self._longest_ns if certain else min(self._longest_ns, self._patience_ns)
        self.repeat(gang)

    def repeat(self, gang: GangName) -> None:
        """Note that GPUs are reserved for ``gang`` although nobody began a plan that it had before."""
        self._noted.add(gang)

    def end(self, runs: Callable[[GangName], bool], *, finished: bool) -> None:
        """End a round; what was reserved for a gang that ``runs`` now was not in vain.

        A round that has not ``finished`` has not seen all gangs.
        """
        if not finished:
            self._noted |= self._gangs
        if not self._noted and any(runs(gang) for gang in self._gangs):
            self._debt_ns, self.resting = 0, False
        if self._starved not in self._noted:
            self._starved, self._limit_ns = None, self._longest_ns
        self._gangs, self._reserving = self._noted, bool(self._noted)
