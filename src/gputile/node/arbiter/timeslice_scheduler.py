"""Schedules turns on one GPU. The scheduler receives events, and returns messages for processes.

A member is a connected process, identified by a number. The processes of a container share an
account of GPU time. A turn belongs to an account, and several processes of the container may hold
the turn at the same time. docs/concepts/arbiter.md describes the rules.

This module uses no clock and no I/O. All times are in nanoseconds.
"""

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
# How long the GPU stays idle for the container whose turn has ended, if it still ranks first
GRACE: Final = 1 * MS
# A turn begins without an end if no other container has used the GPU for this time.
UNCONTENDED_AFTER: Final = 1000 * MS
# A container that did not want the GPU for longer than this gets no credit for that time.
AWAY_AFTER: Final = 100 * MS
# At least a quarter of a turn is charged, because the GPU was reserved even if it was idle.
LEAST_CHARGED_PART: Final = 4
MOST_OWED: Final = 1000 * MS
MOST_OVERRUN: Final = 500 * MS
# At most this many processes hold a turn. Other processes of the container wait for the next turn.
MOST_HOLDERS: Final = 64
SPARE_PART: Final = 6  # a GPU stays idle for a joint turn for at most a sixth of a quantum

USED_WITHIN: Final = 1000 * MS  # GPUs that a process wants within this time count as used together

Rank = tuple[int, int, int, int, str]
"""A sort key: the account with the smallest rank gets the next turn."""


class TimeSliceScheduler:
    """The accounts and the current turn on one GPU.

    ``NodeTimeSlices``, which manages all GPUs, begins the turns. It calls ``tick`` after each
    event.
    """

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self.accounts: dict[str, Account] = {}
        self._members: dict[int, Account] = {}
        self._wanted_at: dict[int, int] = {}  # when each member last wanted the GPU
        self.turn: Turn | None = None
        self._grace: tuple[Account, int] | None = None
        self._virtual = 0
        self._forgiven: set[int] = set()  # processes that overrun a turn which began without an end
        self._last_number = 0
        self._refilled_at: int | None = None

    @property
    def _enough(self) -> int:
        """The level that the bucket ``ceiling`` of an account must reach before a turn begins."""
        return self.quantum // 2

    def configure(self, quantum: int) -> None:
        self.quantum = quantum
        for account in self.accounts.values():
            account.configure(account.share, quantum)

    # -- containers and processes

    def set_share(self, container: str, share: Share, now: int) -> None:
        self._bring_up_to(now)
        account = self.accounts.get(container)
        if account is None:
            ceiling = Bucket(share.ceiling, 2 * self.quantum, self.quantum, now)
            guarantee = Bucket(share.guarantee, 2 * self.quantum, 0, now)
            self.accounts[container] = Account(container, share, ceiling, guarantee, self._virtual)
        elif account.share != share:
            account.configure(share, self.quantum)

    def remove(self, container: str, now: int) -> None:
        account = self.accounts.pop(container, None)
        for member in [m for m, owner in self._members.items() if owner is account]:
            self.leave(member, now)

    def leave(self, member: int, now: int) -> None:
        self._bring_up_to(now)
        account = self._members.pop(member, None)
        if account is None:
            return
        del self._wanted_at[member]
        account.waiting.pop(member, None)
        if not account.waiting:
            account.stop_waiting(now)
        if member in account.overrun:
            self._charge_overrun(account, member, now)
        turn = self.turn
        if turn is not None and member in turn.holders:
            turn.holders.discard(member)
            turn.used = now - turn.since
            if not turn.holders:
                self._end(now)
                self._grace = None

    # -- messages of processes

    def want(self, container: str, member: int, now: int) -> bool:
        """Record that ``member`` wants the GPU. Return whether it belongs to ``container``."""
        self._bring_up_to(now)
        account = self.accounts.get(container)
        if account is None or self._members.get(member, account) is not account:
            return False
        self._members[member], self._wanted_at[member] = account, now
        if member not in self.holders and member not in account.overrun:
            self._wait(account, member, now)
        return True

    def waits(self, member: int) -> bool:
        account = self._members.get(member)
        return account is not None and member in account.waiting

    def is_used_by(self, member: int, now: int) -> bool:
        """Return whether a process holds the turn, or wanted one within the last second."""
        wanted_at = self._wanted_at.get(member)
        return member in self.holders or (wanted_at is not None and now - wanted_at <= USED_WITHIN)

    def holds(self, member: int, number: int) -> bool:
        return self.turn is not None and self.turn.number == number and member in self.turn.holders

    def busy(self, member: int, number: int, now: int) -> bool:
        """Record that ``member`` still has work on the GPU. Return whether it holds the turn."""
        if self.turn is None or not self.holds(member, number):
            return False
        self.turn.last_message_at = now
        return True

    def done(self, member: int, number: int, used: int, again: bool, now: int) -> Account | None:
        """Accept the turn that a process returns. Return the account of the process.

        The result is None if the process neither holds nor overruns a turn. ``used`` is the time
        for which the GPU worked for the process. ``again`` states whether the process has more
        work.
        """
        account, turn, holds = self._members.get(member), self.turn, self.holds(member, number)
        if account is None or not (holds or member in account.overrun):
            return None
        self._bring_up_to(now)
        if turn is not None and holds:
            turn.holders.discard(member)
            turn.used = max(turn.used, used)
        else:
            self._charge_overrun(account, member, now)
        if again:
            self._wanted_at[member] = now
            self._wait(account, member, now)
        if turn is not None and holds and not turn.holders:
            turn.worked, turn.used = turn.worked + turn.used, 0
            if account.in_joint_set:
                turn.open_until = now + self.spare
            else:
                self._end(now)
        return account

    # -- time

    def tick(self, now: int) -> list[TimesliceMessage]:
        self._bring_up_to(now)
        return self._continue(now)

    def wake_at(self, now: int) -> int | None:
        due: list[int] = []
        turn = self.turn
        if turn is not None and not turn.holders:
            due.append(turn.open_until)
        elif turn is not None and turn.end is not None:
            due.append(self._lost_at(turn, turn.end))
        else:
            eligible = (self.eligible_at(a) for a in self.accounts.values() if self._competes(a))
            due += [at for at in eligible if at > now]
        if self._grace is not None:
            due.append(self._grace[1])
        return min(due, default=None)

    @property
    def holders(self) -> frozenset[int]:
        return frozenset(self.turn.holders) if self.turn is not None else frozenset()

    # -- for NodeTimeSlices, which manages all GPUs

    @property
    def spare(self) -> int:
        """The longest time for which the GPU may stay idle until a joint turn can begin."""
        return self.quantum // SPARE_PART

    @property
    def owner(self) -> Account | None:
        """The account that has the turn, even if none of its processes holds the turn now."""
        return self.turn.account if self.turn is not None else None

    def is_overdue(self, now: int) -> bool:
        """Return whether a process still holds the turn half a quantum after the turn's end."""
        turn = self.turn
        return (
            turn is not None
            and turn.end is not None
            and bool(turn.holders)
            and now >= turn.end + self.quantum // 2
        )

    def free_at(self, now: int) -> int:
        """Return when the GPU is expected to be free.

        A turn that is overdue by ``spare`` or more is expected to become overdue twice as long.
        """
        turn = self.turn
        if turn is None:
            return now
        if turn.end is None:
            return now + self.quantum
        over = now - turn.end
        return now + over if over >= self.spare else max(now, turn.end)

    def end_by(self, end: int, now: int) -> list[TimesliceMessage]:
        """Set the end of the current turn if it has none. Return the messages about it."""
        turn = self.turn
        if turn is None or turn.end is not None:
            return []
        turn.end, turn.last_message_at = max(now, end), max(turn.last_message_at, now)
        return [Limit(member, turn.number, turn.end - now) for member in sorted(turn.holders)]

    def revoke(self, now: int) -> None:
        """End the current turn although processes hold it, and charge their overrun."""
        if self.turn is not None:
            self._bring_up_to(now)
            self._lose(self.turn, now)

    def release(self, now: int) -> None:
        """End the current turn if no process holds it."""
        if self.turn is not None and not self.turn.holders:
            self._bring_up_to(now)
            self._end(now)

    def grace(self, now: int) -> tuple[Account, int] | None:
        """Return the account for which the GPU stays idle after its turn, and until when."""
        if self._grace is not None and (now >= self._grace[1] or self._grace[0].wants):
            self._grace = None
        return self._grace

    # -- accounting

    def _bring_up_to(self, now: int) -> None:
        if now != self._refilled_at:
            self._refilled_at, enough = now, self._enough
            for account in self.accounts.values():
                account.refill(now, enough)
        turn = self.turn
        if turn is not None:
            # If ``now`` is later than that, the arbiter did not run. That time is not charged.
            until = now if turn.end is None else min(now, self._lost_at(turn, turn.end))
            spent = max(0, until - turn.charged_until)
            contended = spent if any(self._competes(a) for a in self.accounts.values()) else 0
            turn.account.charge(spent, contended)
            turn.contended += contended
            turn.account.last_active = now
            turn.charged_until = max(until, turn.charged_until)
        active = [
            a.virtual for a in self.accounts.values() if a.wants or (turn and turn.account is a)
        ]
        self._virtual = max(self._virtual, min(active, default=self._virtual))

    def _wait(self, account: Account, member: int, now: int) -> None:
        if not account.waiting:
            account.start_waiting(now)
            active = self.turn is not None and self.turn.account is account
            away = account.last_active is None or now - account.last_active > AWAY_AFTER
            if away and not active:
                account.virtual = max(account.virtual, self._virtual)
            most = virtual_time(MOST_OWED, account.share)
            account.virtual = min(max(account.virtual, self._virtual - most), self._virtual + most)
        account.last_active = now
        account.waiting[member] = None

    def _charge_overrun(self, account: Account, member: int, now: int) -> None:
        """Charge the time for which a process has occupied the GPU after it lost its turn."""
        spent = min(now - account.overrun.pop(member), MOST_OWED)
        account.charge(spent, spent)
        account.last_active = now
        if member in self._forgiven:
            self._forgiven.discard(member)
            self._forgive(account)

    def _forgive(self, account: Account) -> None:
        """Limit the debt of an account to one quantum, after a turn that began without an end."""
        account.virtual = min(
            account.virtual, self._virtual + virtual_time(self.quantum, account.share)
        )
        account.guarantee.level = max(account.guarantee.level, -self.quantum)

    def _end(self, now: int) -> None:
        turn, self.turn = self.turn, None
        if turn is None:
            return
        lasted = turn.charged_until - turn.since
        too_much = lasted - min(lasted, max(turn.worked + turn.used, lasted // LEAST_CHARGED_PART))
        turn.account.charge(-too_much, -min(too_much, turn.contended))
        if turn.unbounded:
            self._forgive(turn.account)
        if turn.account.waiting:  # more processes wanted the turn than MOST_HOLDERS
            turn.account.start_waiting(now)
        if turn.end is not None and now >= turn.end:
            self._grace = (turn.account, now + GRACE)
            turn.account.ended_at = now

    # -- the current turn

    def _continue(self, now: int) -> list[TimesliceMessage]:
        turn = self.turn
        if turn is None:
            return []
        account = turn.account
        messages: list[TimesliceMessage] = []
        others = (a for a in self.accounts.values() if self._competes(a))
        contended = any(self.eligible_at(a) <= now for a in others)
        if turn.end is None and (account.has_ceiling or contended):
            messages += self.end_by(turn.since + self.quantum, now)
        if turn.end is None or now < turn.end:
            length = 0 if turn.end is None else turn.end - now
            for member in list(account.waiting)[: MOST_HOLDERS - len(turn.holders)]:
                del account.waiting[member]
                turn.holders.add(member)
                messages.append(Grant(member, turn.number, length))
            account.stop_waiting(now)
        if not turn.holders:
            if now >= turn.open_until or (turn.end is not None and now >= turn.end):
                self._end(now)
        elif turn.end is not None and now >= self._lost_at(turn, turn.end):
            self._lose(turn, now)
        return messages

    def _lose(self, turn: Turn, now: int) -> None:
        for member in turn.holders:
            turn.account.overrun[member] = now
            if turn.unbounded:
                self._forgiven.add(member)
        turn.used = now - turn.since
        self._end(now)
        self._grace = None

    def _lost_at(self, turn: Turn, end: int) -> int:
        """Return when holders lose a turn that ended at ``end`` if they send no more messages."""
        return min(max(end, turn.last_message_at) + self.quantum, end + MOST_OVERRUN)

    # -- the next turn

    def _competes(self, account: Account) -> bool:
        return account.wants and not (self.turn is not None and self.turn.account is account)

    def eligible_at(self, account: Account) -> int:
        """Return the time, past or future, from which the ceiling of an account permits a turn."""
        if not account.has_ceiling:
            return 0
        at = account.ceiling.full_enough_at(self._enough)
        return (
            at if at > account.ceiling.at or account.enough_since is None else account.enough_since
        )

    def begin(self, container: str, length: int, now: int) -> list[TimesliceMessage]:
        """Begin a container's turn of ``length`` on the free GPU.

        A turn of length 0 has no end until another container wants the GPU. If no process of the
        container waits for the GPU, the turn stays open for a short time.
        """
        account = self.accounts[container]
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        end = now + length if length else None
        self.turn = Turn(self._last_number, account, now, end, now, now, unbounded=end is None)
        self.turn.open_until = now + (self.quantum if account.overrun else self.spare)
        self._grace = None
        return self._continue(now)

    def length(self, account: Account, now: int) -> int:
        """Return the length of an account's next turn, or 0 for a turn without an end."""
        if account.has_ceiling:
            return min(self.quantum, account.ceiling.level)
        contended = any(
            a.wants
            or a.overrun
            or (a.last_active is not None and now - a.last_active < UNCONTENDED_AFTER)
            for a in self.accounts.values()
            if a is not account
        )
        return self.quantum if contended else 0

    def lead(self, account: Account) -> int:
        """Return how far an account is ahead of the smallest virtual time of active accounts."""
        return account.virtual - self._virtual
