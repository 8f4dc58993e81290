"""Defines the accounts and turns of containers on one GPU, and the messages about turns.

All times except virtual time are in nanoseconds.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.node.native_layouts import SHARE_WHOLE

WHOLE: Final = SHARE_WHOLE
_SCALE: Final = 1000  # virtual time is in picoseconds, to keep rounding errors small


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container's share of one GPU's time.

    ``guarantee`` is a minimum and ``ceiling`` a maximum, in millionths of wall-clock time.
    """

    weight: int = 1
    guarantee: int = 0
    ceiling: int = WHOLE
    priority: int = 0


def virtual_time(spent: int, share: Share) -> int:
    return spent * _SCALE // share.weight


@dataclass(slots=True)
class Bucket:
    """A token bucket that contains GPU time. Its ``level`` may become negative.

    The level rises by ``rate`` millionths of the elapsed time, up to ``most``.
    """

    rate: int
    most: int
    level: int
    at: int = 0

    def refill(self, now: int) -> None:
        if self.level != self.most:  # a shortcut, because most buckets are full
            level = self.level + (now - self.at) * self.rate // WHOLE
            self.level = level if level < self.most else self.most
        self.at = now

    def full_enough_at(self, level: int) -> int:
        """Return when the bucket reaches ``level`` if no time is used until then."""
        missing = level - self.level
        return self.at + max(0, -(-missing * WHOLE // self.rate))


@dataclass(slots=True)
class Account:
    """What the arbiter records about one container on one GPU.

    ``waiting`` contains the numbers of the processes that wait for a turn. ``overrun`` contains
    the processes that still occupy the GPU after they lost their turn.
    """

    name: str
    share: Share
    ceiling: Bucket
    guarantee: Bucket
    virtual: int = 0  # the used time divided by the weight, for the order of turns
    used: int = 0
    reported: int = 0  # the maximum that ``used`` has reached
    last_active: int | None = None
    waited: int = 0  # the total waiting time before ``waits_since``
    waits_since: int | None = None  # None while the container does not wait
    waiting: dict[int, None] = field(default_factory=dict)  # in the order of arrival
    overrun: dict[int, int] = field(default_factory=dict)  # when each process lost its turn
    in_joint_set: bool = False  # whether turns on this GPU begin together with turns on other GPUs
    wants_joint_turn: bool = False  # whether the container waits for such a joint turn
    ended_at: int | None = None  # when a turn on this GPU last reached its end
    enough_since: int | None = None  # since when the ceiling permits a turn, or None

    def configure(self, share: Share, quantum: int) -> None:
        self.share = share
        self.ceiling.rate, self.guarantee.rate = share.ceiling, share.guarantee
        self.ceiling.most = self.guarantee.most = 2 * quantum

    @property
    def wants(self) -> bool:
        return bool(self.waiting) or self.wants_joint_turn

    @property
    def has_ceiling(self) -> bool:
        """Whether the container may use only a part of the GPU's time, even if it is alone."""
        return self.share.ceiling < WHOLE

    def start_waiting(self, now: int) -> None:
        self.stop_waiting(now)
        self.waits_since = now

    def stop_waiting(self, now: int) -> None:
        self.waited, self.waits_since = self.waited_until(now), None

    def waited_until(self, now: int) -> int:
        return self.waited + (now - self.waits_since if self.waits_since is not None else 0)

    def reported_use(self) -> int:
        """Return the used time as a counter, which does not decrease after a refund."""
        self.reported = max(self.reported, self.used)
        return self.reported

    def charge(self, spent: int, contended: int) -> None:
        """Charge the time ``spent`` to the account. Negative times refund an earlier charge.

        ``contended`` is the part of ``spent`` during which other containers waited for the GPU.
        Only this part is charged to the guarantee.
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
    """Process ``member`` may submit work for ``length``, or until a ``Limit`` if that time is 0."""

    member: int
    turn: int
    length: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Process ``member`` must return its turn when the time ``remaining`` has passed."""

    member: int
    turn: int
    remaining: int


TimesliceMessage = Grant | Limit


@dataclass(slots=True)
class Turn:
    """A period in which the processes of one container may use one GPU."""

    number: int
    account: Account
    since: int
    end: int | None  # None if the turn lasts until another container wants the GPU
    charged_until: int
    last_message_at: int  # when a holder last sent a message
    holders: set[int] = field(default_factory=set)
    # the longest time for which the GPU worked for one of the processes that returned the turn
    used: int = 0
    contended: int = 0  # for how long other containers waited during the turn
    unbounded: bool = False  # began without an end, so processes may have submitted much work
    worked: int = 0  # the sum of ``used`` over earlier periods of use within the turn
    open_until: int = 0  # until then, the turn continues even if no process holds it
