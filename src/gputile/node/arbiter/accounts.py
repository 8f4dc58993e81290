"""Defines the accounts of containers on one GPU, their turns, and the messages about turns.

Times are nanoseconds.
"""

from dataclasses import dataclass, field
from typing import Final

from gputile.node.native_layouts import SHARE_WHOLE

WHOLE: Final = SHARE_WHOLE
_SCALE: Final = 1000  # virtual time is in thousandths of a nanosecond, to limit rounding errors


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of one GPU's time.

    ``guarantee`` and ``ceiling`` are millionths of wall-clock time.
    """

    weight: int = 1
    guarantee: int = 0
    ceiling: int = WHOLE
    priority: int = 0


def virtual_time(spent: int, share: Share) -> int:
    return spent * _SCALE // share.weight


@dataclass(slots=True)
class Bucket:
    """A token bucket of time, which may be overdrawn.

    It fills up to ``most``, at ``rate`` millionths of the elapsed time.
    """

    rate: int
    most: int
    level: int
    at: int = 0

    def refill(self, now: int) -> None:
        if self.level != self.most:  # a shortcut: most buckets of many waiting containers are full
            level = self.level + (now - self.at) * self.rate // WHOLE
            self.level = level if level < self.most else self.most
        self.at = now

    def full_enough_at(self, level: int) -> int:
        """Return when the bucket reaches ``level`` if no time is used until then."""
        missing = level - self.level
        return self.at + max(0, -(-missing * WHOLE // self.rate))


@dataclass(slots=True)
class Account:
    """One container's account on one GPU.

    ``virtual`` is the GPU time that it has had, divided by its weight; ``reported`` is the maximum
    that ``used`` has reached. ``waited`` is its total waiting time before ``waits_since``, which is
    None while it does not wait.

    ``waiting`` are its waiting processes, in the order of arrival. ``overrun`` are the processes
    that keep the GPU although they lost their turn, each with the time of the loss. ``tied`` is
    True if its turns on this GPU begin together with those on other GPUs; ``asks`` is True while it
    waits for such a joint turn. ``ended_at`` is when a turn on this GPU last reached its end.
    ``enough_since`` is the time since which its ceiling permits a turn; None while it does not.
    """

    name: str
    share: Share
    ceiling: Bucket
    guarantee: Bucket
    virtual: int = 0
    used: int = 0
    reported: int = 0
    last_active: int | None = None
    waited: int = 0
    waits_since: int | None = None
    waiting: dict[int, None] = field(default_factory=dict)
    overrun: dict[int, int] = field(default_factory=dict)
    tied: bool = False
    asks: bool = False
    ended_at: int | None = None
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
        """Whether a ceiling limits the container even if no other container wants the GPU."""
        return self.share.ceiling < WHOLE

    def waits_from(self, now: int) -> None:
        self.has_waited(now)
        self.waits_since = now

    def has_waited(self, now: int) -> None:
        self.waited, self.waits_since = self.waited_until(now), None

    def waited_until(self, now: int) -> int:
        return self.waited + (now - self.waits_since if self.waits_since is not None else 0)

    def charge(self, spent: int, contended: int) -> None:
        """Charge the time ``spent``; other containers waited during the part ``contended`` of it.

        Only contended time counts against the guarantee. Negative times refund a charge.
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
    """Process ``member`` may submit work for ``length``; 0 means until a ``Limit`` is sent."""

    member: int
    turn: int
    length: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Process ``member`` may submit work for ``remaining`` more, and must then return the turn."""

    member: int
    turn: int
    remaining: int


TimesliceMessage = Grant | Limit


@dataclass(slots=True)
class Turn:
    """A turn of an account on one GPU; times in nanoseconds."""

    number: int
    account: Account
    since: int
    end: int | None  # None: it ends when another container wants the GPU
    charged_until: int
    heard_at: int  # when a holder last sent a message
    holders: set[int] = field(default_factory=set)
    # the longest time for which the GPU worked for a process that has returned the turn
    used: int = 0
    contended: int = 0  # for how long other containers waited during the turn
    unbounded: bool = False  # it began without an end, so processes submitted much work in advance
    worked: int = 0  # the sum of ``used`` over the periods after which no process held the turn
    kept_until: int = 0  # the account keeps the turn until then, even if no process holds it
