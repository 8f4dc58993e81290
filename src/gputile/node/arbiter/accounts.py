"""Counts what the containers on one GPU have had of it, in nanoseconds, to decide whose turn is next.

Also describes a turn, and what processes are told of it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from gputile.node.native_layouts import SHARE_WHOLE

WHOLE: Final = SHARE_WHOLE
_SCALE: Final = 1000  # virtual time counts thousandths of a nanosecond per weight, so that rounding does not add up


@dataclass(frozen=True, slots=True)
class Share:
    """What one container is to get of one GPU's time.

    ``guarantee`` and ``ceiling`` are millionths of the time that goes by. Higher ``priority`` goes first.
    """

    weight: int = 1
    guarantee: int = 0
    ceiling: int = WHOLE
    priority: int = 0


def virtual_time(spent: int, share: Share) -> int:
    return spent * _SCALE // share.weight


@dataclass(slots=True)
class Bucket:
    """Time that a container may still use: it comes in at ``rate`` millionths, up to ``most``, and may be owed."""

    rate: int
    most: int
    level: int
    at: int = 0

    def refill(self, now: int) -> None:
        if self.level != self.most:  # of many containers that wait most have all that they may save up
            level = self.level + (now - self.at) * self.rate // WHOLE
            self.level = level if level < self.most else self.most
        self.at = now

    def full_enough_at(self, level: int) -> int:
        """Return when the bucket holds ``level``, if nothing is used until then."""
        missing = level - self.level
        return self.at + max(0, -(-missing * WHOLE // self.rate))


@dataclass(slots=True)
class Account:
    """One container on one GPU: ``key`` identifies it, and ``name`` is the key as text.

    ``virtual`` is the time that it has had, divided by its weight, ``waited`` how long it waited for turns before
    ``waits_since``, None while it does not wait.

    ``waiting`` are its processes that wait, the first that came first. ``tied``: its turns here begin with those on
    other GPUs; ``asks``: it waits for one of those. ``had_all_at`` is when a turn last came to its end here, and
    ``enough_since`` since when its ceiling lets it have a turn, None while it does not.
    """

    key: Hashable
    name: str
    share: Share
    ceiling: Bucket
    guarantee: Bucket
    virtual: int = 0
    used: int = 0
    last_active: int | None = None
    waited: int = 0
    waits_since: int | None = None
    waiting: dict[int, None] = field(default_factory=dict)
    overrun: dict[int, int] = field(default_factory=dict)
    tied: bool = False
    asks: bool = False
    had_all_at: int | None = None
    enough_since: int | None = None

    def configure(self, share: Share, quantum: int) -> None:
        self.share = share
        self.ceiling.rate, self.guarantee.rate = share.ceiling, share.guarantee
        self.ceiling.most = self.guarantee.most = 2 * quantum

    @property
    def wants(self) -> bool:
        return bool(self.waiting) or self.asks

    @property
    def capped(self) -> bool:
        """Whether the container may not have the whole GPU, even where nobody else wants it."""
        return self.share.ceiling < WHOLE

    def waits_from(self, now: int) -> None:
        self.has_waited(now)
        self.waits_since = now

    def has_waited(self, now: int) -> None:
        self.waited, self.waits_since = self.waited_until(now), None

    def waited_until(self, now: int) -> int:
        return self.waited + (now - self.waits_since if self.waits_since is not None else 0)

    def charge(self, spent: int, contended: int) -> None:
        """Account for ``spent``, of which others waited during ``contended``; both below 0 take a charge back.

        What nobody else wanted is no part of what is guaranteed: it takes nothing off that.
        """
        self.virtual += virtual_time(spent, self.share)
        self.used += spent
        self.ceiling.level -= spent
        self.guarantee.level -= contended

    def refill(self, now: int, enough: int) -> None:
        ceiling = self.ceiling
        if ceiling.level < enough:
            self.enough_since = None
        ceiling.refill(now)
        if self.enough_since is None and ceiling.level >= enough:
            self.enough_since = now
        self.guarantee.refill(now)


@dataclass(frozen=True, slots=True)
class Grant:
    """``member`` may submit work for ``length``; 0: until it is told otherwise."""

    member: int
    turn: int
    length: int


@dataclass(frozen=True, slots=True)
class Limit:
    """``member`` may submit work for ``remaining`` more, then gives the turn back."""

    member: int
    turn: int
    remaining: int


TimesliceMessage = Grant | Limit
"""What a process is told of its turn."""


@dataclass(slots=True)
class Turn:
    """A turn of an account on one GPU; times in nanoseconds."""

    number: int
    account: Account
    since: int
    end: int | None  # None: until somebody else wants the GPU
    charged_until: int
    sign: int  # when a holder was last heard of
    holders: set[int] = field(default_factory=set)
    used: int = 0  # the most that a member that has given the turn back saw the GPU work
    contended: int = 0  # for how long others waited meanwhile
    unbounded: bool = False  # it began without an end: work was submitted far ahead, while nobody else was about
    settled: int = 0  # how long the GPU worked for those who had given it back before nobody was left
    kept_until: int = 0  # nobody has it at the moment, and it stays the account's until then
