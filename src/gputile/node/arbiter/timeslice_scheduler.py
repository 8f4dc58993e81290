"""Schedules turns on one GPU: events in, messages out. No clock and no I/O; times in nanoseconds.

Members are the connected processes, each with a number; those of one container share an account. A turn belongs to an
account, and all its members may hold it together. See docs/concepts/arbiter.md for the rules.
"""

from collections.abc import Hashable
from typing import Final

from gputile.node.arbiter.accounts import (
    Account,
    Bucket,
    Grant,
    Limit,
    Share,
    TimesliceMessage,
    Turn,
    virtual_time,
)

MS: Final = 1_000_000
IDLE_HOLD: Final = 1 * MS  # how long the GPU waits for one that would win again
UNCONTENDED_AFTER: Final = 1000 * MS  # a turn without end needs that nobody else has used the GPU for so long
KEPT_AWAY: Final = 100 * MS  # a container that was away for so long gets no credit for it
LEAST_PART: Final = 4  # of a turn a quarter is charged, even if the GPU did nothing: it was kept from others
MOST_OWED: Final = 1000 * MS
MOST_OVERRUN: Final = 500 * MS
MOST_HOLDERS: Final = 64  # processes of a container that have its turn at once; others of its wait for the next
SPARE_PART: Final = 6  # a GPU is kept idle for the sake of other GPUs for a sixth of a quantum at most

Rank = tuple[int, int, int, int, str]
"""Whose turn is next: the least goes first."""


class TimeSliceScheduler:
    """The turns on one GPU. ``longest_wait`` is after how long a waiting container goes before all others.

    Turns begin with ``begin``, by ``NodeTimeSlices``, which sees all GPUs.
    """

    def __init__(self, quantum: int, longest_wait: int) -> None:
        self.quantum = quantum
        self.longest_wait = longest_wait
        self.accounts: dict[Hashable, Account] = {}
        self._members: dict[int, Account] = {}
        self._turn: Turn | None = None
        self._idle_hold: tuple[Account, int] | None = None
        self._virtual = 0
        self._forgiven: set[int] = set()  # those of ``overrun`` that lost a turn that began without an end
        self._last_number = 0
        self._refilled_at: int | None = None

    @property
    def _enough(self) -> int:
        """What an account's ceiling has to hold for a turn."""
        return self.quantum // 2

    def configure(self, quantum: int, longest_wait: int) -> None:
        self.quantum, self.longest_wait = quantum, longest_wait
        for account in self.accounts.values():
            account.configure(account.share, quantum)

    def used(self, key: Hashable) -> int:
        account = self.accounts.get(key)
        return account.used if account is not None else 0

    def waited(self, key: Hashable, now: int) -> int:
        account = self.accounts.get(key)
        return account.waited_until(now) if account is not None else 0

    # -- who is there

    def put(self, key: Hashable, share: Share, now: int) -> list[TimesliceMessage]:
        self._bring_up_to(now)
        account = self.accounts.get(key)
        if account is None:
            ceiling = Bucket(share.ceiling, 2 * self.quantum, self.quantum, now)
            guarantee = Bucket(share.guarantee, 2 * self.quantum, 0, now)
            self.accounts[key] = Account(key, str(key), share, ceiling, guarantee, self._virtual)
        elif account.share != share:
            account.configure(share, self.quantum)
        return self.tick(now)

    def remove(self, key: Hashable, now: int) -> list[TimesliceMessage]:
        account = self.accounts.pop(key, None)
        for member in [m for m, owner in self._members.items() if owner is account]:
            self._left(member, now)
        return self.tick(now)

    def leave(self, member: int, now: int) -> list[TimesliceMessage]:
        self._left(member, now)
        return self.tick(now)

    # -- what members say

    def want(self, key: Hashable, member: int, now: int) -> list[TimesliceMessage]:
        self._bring_up_to(now)
        account = self.accounts.get(key)
        if account is None or self._members.get(member, account) is not account:
            return []
        self._members[member] = account
        if member not in self.holders and member not in account.overrun:
            self._wait(account, member, now)
        return self.tick(now)

    def waits(self, member: int) -> bool:
        account = self._members.get(member)
        return account is not None and member in account.waiting

    def is_of(self, member: int, key: Hashable) -> bool:
        account = self._members.get(member)
        return account is not None and account is self.accounts.get(key)

    def holds(self, member: int, number: int) -> bool:
        return self._turn is not None and self._turn.number == number and member in self._turn.holders

    def may_give_back(self, member: int, number: int) -> Account | None:
        """Return the account of a process that has the turn ``number``, or has lost one and keeps the GPU."""
        account = self._members.get(member)
        return account if account is not None and (self.holds(member, number) or member in account.overrun) else None

    def busy(self, member: int, number: int, now: int) -> list[TimesliceMessage]:
        """Record that a holder is alive, and waits for the GPU to finish what was submitted."""
        if self._turn is not None and self.holds(member, number):
            self._turn.sign = now
        return self.tick(now)

    def done(self, member: int, number: int, used: int, again: bool, now: int) -> list[TimesliceMessage]:
        """Take a turn back. ``used`` is how long the GPU worked for the member, ``again`` whether it has more."""
        self._bring_up_to(now)
        account, turn = self.may_give_back(member, number), self._turn
        if account is None:
            return self.tick(now)
        if turn is not None and self.holds(member, number):
            turn.holders.discard(member)
            turn.used = max(turn.used, used)
            if again:
                self._wait(account, member, now)
            if not turn.holders:
                turn.settled, turn.used = turn.settled + turn.used, 0
                turn.kept_until = now + self.spare if account.tied else now
                if turn.kept_until == now:
                    self._end(now)
        else:
            self._charge_overrun(account, member, now)
            if again:
                self._wait(account, member, now)
        return self.tick(now)

    # -- time

    def tick(self, now: int) -> list[TimesliceMessage]:
        self._bring_up_to(now)
        return self._look_after(self._turn, now) if self._turn is not None else []

    def wake_at(self, now: int) -> int | None:
        due: list[int] = []
        turn = self._turn
        if turn is not None and not turn.holders:
            due.append(turn.kept_until)
        elif turn is not None and turn.end is not None:
            due.append(self._lost_at(turn, turn.end))
        else:
            eligible = (self.eligible_at(a) for a in self.accounts.values() if self._competes(a))
            due += [at for at in eligible if at > now]
        if self._idle_hold is not None:
            due.append(self._idle_hold[1])
        return min(due, default=None)

    @property
    def holders(self) -> frozenset[int]:
        return frozenset(self._turn.holders) if self._turn is not None else frozenset()

    # -- for NodeTimeSlices, which sees all GPUs

    @property
    def spare(self) -> int:
        """For how long the GPU may be kept idle for the sake of others."""
        return self.quantum // SPARE_PART

    @property
    def owner(self) -> Account | None:
        """Whose turn it is, though perhaps none of its processes has it at the moment."""
        return self._turn.account if self._turn is not None else None

    @property
    def since(self) -> int | None:
        return self._turn.since if self._turn is not None else None

    def held_up(self, now: int) -> bool:
        """Return whether somebody has the GPU for half a quantum longer than the turn was to last."""
        turn = self._turn
        return turn is not None and turn.end is not None and bool(turn.holders) and now >= turn.end + self.quantum // 2

    @property
    def end(self) -> int | None:
        """When the turn is over; None: not before somebody else wants the GPU, or there is none."""
        return self._turn.end if self._turn is not None else None

    def free_at(self, now: int) -> int:
        """Return when the GPU can be expected to be free: an overdue turn is assumed to last as long again."""
        turn = self._turn
        if turn is None:
            return now
        if turn.end is None:
            return now + self.quantum
        over = now - turn.end
        return now + over if over >= self.spare else max(now, turn.end)

    def end_by(self, end: int, now: int) -> list[TimesliceMessage]:
        turn = self._turn
        if turn is None or turn.end is not None:
            return []
        turn.end, turn.sign = max(now, end), max(turn.sign, now)
        return [Limit(member, turn.number, turn.end - now) for member in sorted(turn.holders)]

    def take_away(self, now: int) -> None:
        """End a turn though its holders still keep the GPU; they are charged for that when they give it back."""
        if self._turn is not None:
            self._bring_up_to(now)
            self._lose(self._turn, now)

    def release(self, now: int) -> None:
        """End a turn that none of its account's processes has."""
        if self._turn is not None and not self._turn.holders:
            self._bring_up_to(now)
            self._end(now)

    def idle_hold(self, now: int) -> tuple[Account, int] | None:
        """Return for whom the GPU is kept free for a moment after its turn, and until when."""
        if self._idle_hold is not None and (now >= self._idle_hold[1] or self._idle_hold[0].waiting):
            self._idle_hold = None
        return self._idle_hold

    # -- accounting

    def _bring_up_to(self, now: int) -> None:
        if now != self._refilled_at:  # several times at one moment it is the same
            self._refilled_at, enough = now, self._enough
            for account in self.accounts.values():
                account.refill(now, enough)
        turn = self._turn
        if turn is not None:
            # Later than that only if this process slept: nobody pays for that.
            until = now if turn.end is None else min(now, self._lost_at(turn, turn.end))
            spent = max(0, until - turn.charged_until)
            contended = spent if any(self._competes(a) for a in self.accounts.values()) else 0
            turn.account.charge(spent, contended)
            turn.contended += contended
            turn.account.last_active = now
            turn.charged_until = max(until, turn.charged_until)
        active = [a.virtual for a in self.accounts.values() if a.wants or (turn and turn.account is a)]
        self._virtual = max(self._virtual, min(active, default=self._virtual))

    def _wait(self, account: Account, member: int, now: int) -> None:
        if not account.waiting:
            account.waits_from(now)
            active = self._turn is not None and self._turn.account is account
            away = account.last_active is None or now - account.last_active > KEPT_AWAY
            if away and not active:
                account.virtual = max(account.virtual, self._virtual)
            most = virtual_time(MOST_OWED, account.share)
            account.virtual = min(max(account.virtual, self._virtual - most), self._virtual + most)
        account.last_active = now
        account.waiting[member] = None

    def _left(self, member: int, now: int) -> None:
        self._bring_up_to(now)
        account = self._members.pop(member, None)
        if account is None:
            return
        account.waiting.pop(member, None)
        if not account.waiting:
            account.has_waited(now)
        if member in account.overrun:
            self._charge_overrun(account, member, now)
        turn = self._turn
        if turn is not None and member in turn.holders:
            turn.holders.discard(member)
            turn.used = now - turn.since
            if not turn.holders:
                self._end(now)
                self._idle_hold = None

    def _charge_overrun(self, account: Account, member: int, now: int) -> None:
        """Charge what a member has occupied of the GPU since it lost its turn."""
        spent = min(now - account.overrun.pop(member), MOST_OWED)
        account.charge(spent, spent)
        account.last_active = now
        if member in self._forgiven:
            self._forgiven.discard(member)
            self._forgive(account)

    def _forgive(self, account: Account) -> None:
        """Let an account owe no more than a quantum for what it had submitted while it was alone."""
        account.virtual = min(account.virtual, self._virtual + virtual_time(self.quantum, account.share))
        account.guarantee.level = max(account.guarantee.level, -self.quantum)

    def _end(self, now: int) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        lasted = turn.charged_until - turn.since
        too_much = lasted - min(lasted, max(turn.settled + turn.used, lasted // LEAST_PART))
        turn.account.charge(-too_much, -min(too_much, turn.contended))
        if turn.unbounded:
            self._forgive(turn.account)
        if turn.account.waiting:  # more than may have a turn at once
            turn.account.waits_from(now)
        if turn.end is not None and now >= turn.end:
            self._idle_hold = (turn.account, now + IDLE_HOLD)
            turn.account.had_all_at = now

    # -- the turn there is

    def _look_after(self, turn: Turn, now: int) -> list[TimesliceMessage]:
        account = turn.account
        said: list[TimesliceMessage] = []
        others = (a for a in self.accounts.values() if self._competes(a))
        if turn.end is None and (account.capped or any(self.eligible_at(a) <= now for a in others)):
            turn.end = max(now, turn.since + self.quantum)
            turn.sign = max(turn.sign, now)
            said += [Limit(member, turn.number, turn.end - now) for member in sorted(turn.holders)]
        if turn.end is None or now < turn.end:
            length = 0 if turn.end is None else turn.end - now
            for member in list(account.waiting)[: MOST_HOLDERS - len(turn.holders)]:
                del account.waiting[member]
                turn.holders.add(member)
                said.append(Grant(member, turn.number, length))
            account.has_waited(now)
        if not turn.holders:
            if now >= turn.kept_until or (turn.end is not None and now >= turn.end):
                self._end(now)
        elif turn.end is not None and now >= self._lost_at(turn, turn.end):
            self._lose(turn, now)
        return said

    def _lose(self, turn: Turn, now: int) -> None:
        for member in turn.holders:
            turn.account.overrun[member] = now
            if turn.unbounded:
                self._forgiven.add(member)
        turn.used = now - turn.since
        self._end(now)
        self._idle_hold = None

    def _lost_at(self, turn: Turn, end: int) -> int:
        """Return when holders lose a turn that ended at ``end``, if nothing more is heard of them."""
        return min(max(end, turn.sign) + self.quantum, end + MOST_OVERRUN)

    # -- the next one

    def _competes(self, account: Account) -> bool:
        return account.wants and not (self._turn is not None and self._turn.account is account)

    def eligible_at(self, account: Account) -> int:
        """Return when an account has enough of its ceiling for a turn, or since when it has had that."""
        if not account.capped:
            return 0
        at = account.ceiling.full_enough_at(self._enough)
        return at if at > account.ceiling.at or account.enough_since is None else account.enough_since

    def begin(self, key: Hashable, length: int, now: int) -> list[TimesliceMessage]:
        """Begin a turn of a container on the free GPU, for ``length``, 0: until somebody else wants it.

        Where none of its processes waits, the turn is kept for one that comes in a moment.
        """
        account = self.accounts[key]
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        end = now + length if length else None
        self._turn = Turn(self._last_number, account, now, end, now, now, unbounded=end is None)
        self._turn.kept_until = now + (self.quantum if account.overrun else self.spare)
        self._idle_hold = None
        return self._look_after(self._turn, now)

    def length(self, account: Account, now: int) -> int:
        """Return how long the next turn of an account lasts; 0: until somebody else wants the GPU."""
        if account.capped:
            return min(self.quantum, account.ceiling.level)
        return 0 if self._is_uncontended(account, now) else self.quantum

    def _is_uncontended(self, account: Account, now: int) -> bool:
        """Return whether nobody but ``account`` is about: one with a turn without end submits far ahead of the GPU."""
        others = [a for a in self.accounts.values() if a is not account]
        if any(a.asks for a in others):
            return False
        return not any(
            a.waiting or a.overrun or now - a.last_active < UNCONTENDED_AFTER
            for a in others
            if a.last_active is not None
        )

    def lead(self, account: Account) -> int:
        """Return how much more an account has had, for its weight, than the one of those about that has had least."""
        return account.virtual - self._virtual

    def rank(self, account: Account, now: int) -> Rank:
        """Return when it is an account's turn, among those on this GPU: the least first."""
        since = now if account.waits_since is None else max(account.waits_since, self.eligible_at(account))
        if now - since >= self.longest_wait:
            return (0, since, 0, 0, account.name)
        owed = account.share.guarantee > 0 and account.guarantee.level > 0
        return (1, 0 if owed else 1, -account.share.priority, self.lead(account), account.name)
