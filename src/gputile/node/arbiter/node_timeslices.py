"""Schedules turns on all GPUs of a node, with those that a container takes on several at once.

Work that spans GPUs, as NCCL's does, keeps the GPU that it has begun on until it has the others too. So a container
that uses GPUs together gets its turns on them together: all begin at once, or none. ``TimeSliceScheduler`` has each
GPU's turn and accounts, ``JointGpus`` says which GPUs belong together, ``turns_to_begin`` says who begins. No
clock and no I/O; times are nanoseconds. See docs/concepts/arbiter.md for the rules.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gputile.node.arbiter.accounts import Account, Share, TimesliceMessage
from gputile.node.arbiter.joint_turns import Begin, JointGpus, TurnCandidate, turns_to_begin
from gputile.node.arbiter.timeslice_scheduler import MS, SPARE_PART, Rank, TimeSliceScheduler

KEPT_QUANTA: Final = 4  # so long a set waits before others are kept off its GPUs; they are for as long at most
LOOK_AGAIN: Final = 1 * MS  # how often a GPU that is kept idle is looked at

Said = list[tuple[str, TimesliceMessage]]
"""Instructions, each with its GPU."""


@dataclass(slots=True)
class _Round:
    """What a container has had since it last had no turn on any GPU of its set."""

    joined: set[str] = field(default_factory=set)  # GPUs that it got beside those that it had
    continues: bool = False  # its last round left work on a GPU that needs another: it is the next to have all
    continued: bool = False  # and that is what this round is


class NodeTimeSlices:
    """The turns on the GPUs of a node; see ``TimeSliceScheduler`` for quantum and longest wait.

    ``cost`` is how much there was to look at for the last event: 1 on a GPU that no container uses with others.
    """

    def __init__(self, quantum: int = 30 * MS, longest_wait: int = 1000 * MS) -> None:
        self.quantum, self.longest_wait = quantum, longest_wait
        self._gpus: dict[str, TimeSliceScheduler] = {}
        self._joint_gpus = JointGpus()
        self._tied: dict[Hashable, tuple[str, ...]] = {}
        self._rounds: dict[Hashable, _Round] = {}
        self._look_again: dict[str, int] = {}
        self._touched: set[str] = set()
        self.cost = 1

    def configure(self, quantum: int, longest_wait: int) -> None:
        self.quantum, self.longest_wait = quantum, longest_wait
        for gpu in self._gpus.values():
            gpu.configure(quantum, longest_wait)

    def gpu(self, uuid: str) -> TimeSliceScheduler:
        return self._gpus[uuid]

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(self._gpus)

    # -- events

    def put(self, uuid: str, key: Hashable, share: Share, now: int) -> Said:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = TimeSliceScheduler(self.quantum, self.longest_wait)
        return self._after(uuid, gpu.put(key, share, now), now)

    def remove(self, uuid: str, key: Hashable, now: int) -> Said:
        self._joint_gpus.forget(key, uuid)
        near = self._near(uuid)
        return self._after(uuid, self._gpus[uuid].remove(key, now), now, near)

    def drop(self, uuid: str) -> None:
        del self._gpus[uuid]
        self._look_again.pop(uuid, None)
        self._touched.discard(uuid)

    def leave(self, uuid: str, member: int, now: int) -> Said:
        self._joint_gpus.forget_member(member)
        return self._after(uuid, self._gpus[uuid].leave(member, now), now)

    def want(self, uuid: str, key: Hashable, member: int, now: int) -> Said:
        gpu = self._gpus[uuid]
        said = gpu.want(key, member, now)
        if gpu.is_of(member, key):
            self._uses(uuid, key, member, now)
        return self._after(uuid, said, now)

    def busy(self, uuid: str, member: int, number: int, now: int) -> Said:
        if not self._gpus[uuid].holds(member, number):
            return self._nothing()
        return self._after(uuid, self._gpus[uuid].busy(member, number, now), now)

    def done(self, uuid: str, member: int, number: int, used: int, again: bool, now: int) -> Said:
        """Take a turn back; see ``TimeSliceScheduler.done``."""
        gpu = self._gpus[uuid]
        # The account is the member's own, whoever has the turn by now: what one says ties no GPUs of another.
        account = gpu.may_give_back(member, number)
        if account is None:
            return self._nothing()
        said = gpu.done(member, number, used, again, now)
        if again:
            self._uses(uuid, account.key, member, now)
        return self._after(uuid, said, now)

    def tick(self, uuid: str, now: int) -> Said:
        return self._after(uuid, self._gpus[uuid].tick(now), now)

    def touched(self, now: int) -> dict[str, int | None]:
        """Return when ``tick`` is due, None for never, for each GPU that something happened on since the last call."""
        touched, self._touched = self._touched, set()
        return {uuid: self.wake_at(uuid, now) for uuid in touched}

    def wake_at(self, uuid: str, now: int) -> int | None:
        due = (self._gpus[uuid].wake_at(now), self._look_again.get(uuid))
        return min((at for at in due if at is not None), default=None)

    # -- what belongs together

    def _key_of(self, gpu: TimeSliceScheduler, account: Account) -> Hashable:
        return account.key if gpu.accounts.get(account.key) is account else None

    def _uses(self, uuid: str, key: Hashable, member: int, now: int) -> None:
        """Note that a process uses GPUs at once: those that it has wanted lately, and those on which it has a turn."""
        lately = self._joint_gpus.wants(key, member, uuid, now)
        held = {other for other, gpu in self._gpus.items() if member in gpu.holders}
        self._belong(key, uuid, lately | held, now)

    def _belong(self, key: Hashable, uuid: str, others: Iterable[str], now: int) -> None:
        """Note that a container uses a GPU together with those of ``others`` on which it has the same share.

        Work over several GPUs keeps to one share, so GPUs with other guarantees or ceilings are left out.
        """
        account = self._gpus[uuid].accounts.get(key)
        if account is None:
            return
        found = {uuid}
        for other in others:
            there = self._gpus[other].accounts.get(key) if other in self._gpus else None
            if there is not None and (there.share.guarantee, there.share.ceiling) == (
                account.share.guarantee,
                account.share.ceiling,
            ):
                found.add(other)
        if len(found) > 1:
            self._joint_gpus.note(key, found, now)
            self._tie(key, now)

    def _tie(self, key: Hashable, now: int) -> None:
        """Recompute the GPUs that are granted to a container together."""
        before = self._tied.get(key, ())
        gpus = tuple(c for c in self._joint_gpus.of(key, now) if c in self._gpus and key in self._gpus[c].accounts)
        after = gpus if len(gpus) > 1 else ()
        if before == after:
            return
        for uuid in {*before, *after}:
            account = self._gpus[uuid].accounts.get(key) if uuid in self._gpus else None
            if account is not None:
                account.tied, account.asks = uuid in after, False
        if after:
            self._tied[key] = after
            self._rounds.setdefault(key, _Round())
        else:
            del self._tied[key], self._rounds[key]

    def _near(self, uuid: str) -> set[str]:
        """Return a GPU, and all that are tied to it through containers and other GPUs."""
        near, new = {uuid}, True
        while new:
            new = False
            for gpus in self._tied.values():
                if not near.issuperset(gpus) and not near.isdisjoint(gpus):
                    near.update(gpus)
                    new = True
        return near

    # -- after each event

    def _nothing(self) -> Said:
        """Return the answer to an event that changes nothing."""
        self.cost = 1
        return []

    def _after(self, uuid: str, said: list[TimesliceMessage], now: int, near: set[str] | None = None) -> Said:
        found: Said = [(uuid, instruction) for instruction in said]
        left, near = near is not None, (near or set()) | self._near(uuid)
        self._touched |= near
        tied = [key for key, gpus in self._tied.items() if not near.isdisjoint(gpus)]
        self.cost = (len(near) + len(tied) + 1) // 2  # as measured, from 2 GPUs and a container to 16 of each
        for key in tied:
            if left or self._joint_gpus.ends(key, now):
                self._tie(key, now)
        for other in sorted(near):
            self._tie_if_held_up(other, now)
        self._end_held_up(near, now)
        self._ask(near, now)
        for other in sorted(near):
            found += [(other, instruction) for instruction in self._gpus[other].tick(now)]
        self._release(near, now)
        found += self._begin(near, now)
        found += self._end_joint_gpus(near, now)
        return found

    def _tie_if_held_up(self, uuid: str, now: int) -> None:
        """Note that a container which keeps a GPU long after its turn may need it together with those it waits for."""
        gpu = self._gpus[uuid]
        owner = gpu.owner
        if owner is None or owner.tied or not gpu.held_up(now):
            return
        key = self._key_of(gpu, owner)
        waits = [c for c, other in self._gpus.items() if key in other.accounts and other.accounts[key].waiting]
        self._belong(key, uuid, waits, now)

    def _mine(self, key: Hashable) -> list[tuple[str, TimeSliceScheduler, Account]]:
        return [(uuid, self._gpus[uuid], self._gpus[uuid].accounts[key]) for uuid in self._tied[key]]

    def _has(self, key: Hashable) -> list[str]:
        return [uuid for uuid, gpu, account in self._mine(key) if gpu.owner is account]

    def _among(self, near: set[str]) -> list[Hashable]:
        return [key for key, gpus in self._tied.items() if near.issuperset(gpus)]

    def _having(self, near: set[str]) -> list[tuple[Hashable, list[str]]]:
        """Return the containers that have turns of their sets on these GPUs, with those turns' GPUs."""
        return [(key, has) for key in self._among(near) if (has := self._has(key))]

    def _ask(self, near: set[str], now: int) -> None:
        """Let a container that waits for one GPU of its set ask for all of them, unless it has some."""
        for key in self._among(near):
            mine = self._mine(key)
            asks = (
                any(account.waiting for _, _, account in mine)
                and not self._has(key)
                and all(gpu.eligible_at(account) <= now for _, gpu, account in mine)
            )
            for _, _, account in mine:
                account.asks = asks

    def _end_held_up(self, near: set[str], now: int) -> None:
        """Take the GPUs from a container whose turn is over on one of them while it waits for another.

        It is the next to get all of its GPUs, but not twice in a row.
        """
        for key, has in self._having(near):
            round_ = self._rounds[key]
            waits = any(account.waiting and gpu.owner is not account for _, gpu, account in self._mine(key))
            if waits and any(self._gpus[uuid].held_up(now) for uuid in has) and not self._joins(key, now):
                for uuid in has:
                    self._gpus[uuid].take_away(now)
                round_.continues, round_.continued = not round_.continued, False
                round_.joined.clear()

    def _release(self, near: set[str], now: int) -> None:
        """End a set's turn when no process has a GPU of it; two GPUs in use show that they are used together."""
        for key, has in self._having(near):
            in_hand = [uuid for uuid in has if self._gpus[uuid].holders]
            if len(in_hand) > 1:
                self._joint_gpus.note(key, in_hand, now)
            if not in_hand:
                for uuid in has:
                    self._gpus[uuid].release(now)

    def _end_joint_gpus(self, near: set[str], now: int) -> Said:
        """Give all turns of a set the end that one of them has got."""
        said: Said = []
        for _, has in self._having(near):
            ends = [end for uuid in has if (end := self._gpus[uuid].end) is not None]
            if ends and len(ends) < len(has):
                for uuid in has:
                    said += [(uuid, instruction) for instruction in self._gpus[uuid].end_by(min(ends), now)]
        return said

    # -- who begins

    def _begin(self, near: set[str], now: int) -> Said:
        said: Said = []
        free = {uuid for uuid in near if self._gpus[uuid].owner is None}
        candidates = self._candidates(near, now) if free else []
        busy_until = {uuid: None if uuid in free else self._gpus[uuid].free_at(now) for uuid in near}
        begun = turns_to_begin(now, candidates, busy_until, self.quantum, self.quantum // SPARE_PART)
        for begin in begun:
            if begin.key in self._tied and not self._has(begin.key):
                self._rounds[begin.key].joined.clear()
            length = self._length(begin, now)
            for uuid in begin.gpus:
                said += [(uuid, instruction) for instruction in self._gpus[uuid].begin(begin.key, length, now)]
                self._gpus[uuid].accounts[begin.key].asks = False
            free.difference_update(begin.gpus)
            self._record_round(begin)
        for uuid in near:
            self._look_again.pop(uuid, None)
        for candidate in candidates:
            if candidate.until is None and free.issuperset(candidate.gpus):
                self._look_again[candidate.gpus[0]] = now + LOOK_AGAIN
        return said

    def _record_round(self, begin: Begin) -> None:
        round_ = self._rounds.get(begin.key)
        if round_ is None:
            return
        if begin.gpus == self._tied[begin.key]:
            round_.continues, round_.continued = False, round_.continues
        else:
            round_.joined.update(begin.gpus)

    def _candidates(self, near: set[str], now: int) -> list[TurnCandidate]:
        found: list[TurnCandidate] = []
        for uuid in sorted(near):
            gpu = self._gpus[uuid]
            idle_hold = gpu.idle_hold(now)
            if idle_hold is not None and not idle_hold[0].wants:
                account, until = idle_hold
                key = self._key_of(gpu, account)
                rank = self._rank(key, now) if account.tied else gpu.rank(account, now)
                if key is not None and gpu.eligible_at(account) <= now:
                    found.append(TurnCandidate(rank, key, (uuid,), until))
            for key, account in gpu.accounts.items():
                single = account.waiting and not account.tied and gpu.owner is not account
                if single and gpu.eligible_at(account) <= now:
                    found.append(TurnCandidate(gpu.rank(account, now), key, (uuid,)))
        for key in self._among(near):
            if self._has(key):
                found += self._joins(key, now)
            elif any(account.asks for _, _, account in self._mine(key)):
                kept_for = self._kept_for(key, now)
                found.append(TurnCandidate(self._rank(key, now), key, self._tied[key], kept_for=kept_for))
        return found

    def _kept_for(self, key: Hashable, now: int) -> int:
        """Return for how long at most the GPUs of a set are kept for it, 0 while it has not waited for long.

        Those who may use them meanwhile have kernels that end when they end.
        """
        since = min((a.waits_since for _, _, a in self._mine(key) if a.waits_since is not None), default=now)
        times = (self.longest_wait, KEPT_QUANTA * self.quantum)
        return next((most for most in times if now - since >= most), 0)

    def _joins(self, key: Hashable, now: int) -> list[TurnCandidate]:
        """Return the GPUs that a container wants beside those of its set that it has, and keeps until it has these too.

        It gets each GPU in that way once a round, and none whose turn has come to its end.
        """
        since = min(began for uuid in self._has(key) if (began := self._gpus[uuid].since) is not None)
        return [
            TurnCandidate((1, -1, 0, gpu.lead(account), account.name), key, (uuid,))
            for uuid, gpu, account in self._mine(key)
            if account.waiting
            and gpu.owner is not account
            and gpu.eligible_at(account) <= now
            and uuid not in self._rounds[key].joined
            and (account.had_all_at is None or account.had_all_at < since)
        ]

    def _rank(self, key: Hashable, now: int) -> Rank:
        """Return a set's rank: that on the GPU of which the container has had most, so that it gets its share there."""
        mine = self._mine(key)
        waits_since = min((a.waits_since for _, _, a in mine if a.waits_since is not None), default=now)
        since = max([waits_since, *(gpu.eligible_at(account) for _, gpu, account in mine)])
        label = mine[0][2].name
        if now - since >= self.longest_wait:
            return (0, since, 0, 0, label)
        if self._rounds[key].continues:
            return (1, -1, 0, 0, label)
        owed = all(a.share.guarantee > 0 and a.guarantee.level > 0 for _, _, a in mine)
        priority = min(a.share.priority for _, _, a in mine)
        return (1, 0 if owed else 1, -priority, max(gpu.lead(account) for _, gpu, account in mine), label)

    def _length(self, begin: Begin, now: int) -> int:
        """Return how long a turn lasts; 0: until somebody else wants one of its GPUs."""
        on = [(self._gpus[uuid], self._gpus[uuid].accounts[begin.key]) for uuid in begin.gpus]
        lengths = [gpu.length(account, now) for gpu, account in on]
        bounded = [length for length in lengths if length]
        if begin.key in self._tied and (ends := self._ends_of(begin.key)):
            bounded.append(max(self.quantum // 4, min(ends) - now))
        if begin.by is not None:
            bounded.append(begin.by - now)
        return min(bounded, default=0)

    def _ends_of(self, key: Hashable) -> list[int]:
        """Return when the turns end that a container has on GPUs of its set already."""
        return [end for uuid in self._has(key) if (end := self._gpus[uuid].end) is not None]
