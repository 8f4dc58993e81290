"""Schedules turns on all GPUs of a node, including joint turns on several GPUs.

Work that spans GPUs, such as NCCL's, occupies its first GPU until it also gets the other GPUs. So
the GPUs that a container uses together form a joint set. The container gets turns on all GPUs of
its set, or on none. ``TimeSliceScheduler`` manages the turns and accounts of one GPU, and
``turns_to_begin`` decides which turns begin. docs/concepts/arbiter.md describes the rules.

This module uses no clock and no I/O. All times are in nanoseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gputile.node.arbiter.accounts import Account, Share, TimesliceMessage, Turn
from gputile.node.arbiter.joint_turns import Begin, TurnCandidate, turns_to_begin
from gputile.node.arbiter.timeslice_scheduler import MS, SPARE_PART, Rank, TimeSliceScheduler

# After a joint set has waited for this many quanta, its GPUs are reserved for the same time.
RESERVED_QUANTA: Final = 4
RECHECK_AFTER: Final = 1 * MS  # the interval of checks whether a turn can begin on idle GPUs
TOGETHER_FOR: Final = 10_000 * MS  # how long GPUs stay in a joint set after their last joint use

GpuMessages = list[tuple[str, TimesliceMessage]]
"""Messages to processes, each with the UUID of its GPU."""

_GpuAccount = tuple[str, TimeSliceScheduler, Account]


@dataclass(slots=True)
class JointSet:
    """The GPUs that a container uses together, and the state of its current round.

    A round begins when the container has no turn on these GPUs and gets one. The round lasts as
    long as the container has a turn on at least one of the GPUs.
    """

    seen: dict[str, int] = field(default_factory=dict)  # when each GPU was last used jointly
    gpus: tuple[str, ...] = ()  # the GPUs of the set, sorted by UUID
    joined: set[str] = field(default_factory=set)  # GPUs on which a turn began during the round
    # True if the last round left unfinished work on several GPUs. The next round gets all GPUs.
    continues: bool = False
    continued: bool = False  # whether the current round continues such work


class NodeTimeSlices:
    """The turns on all GPUs of a node.

    The methods that handle events return the messages to send. ``cost`` is the cost of the last
    event, relative to an event on a GPU that is in no joint set.
    """

    def __init__(self, quantum: int = 30 * MS, longest_wait: int = 1000 * MS) -> None:
        self.quantum, self.longest_wait = quantum, longest_wait
        self.gpus: dict[str, TimeSliceScheduler] = {}
        self._sets: dict[str, JointSet] = {}  # by container
        self._recheck_at: dict[str, int] = {}
        self._changed: set[str] = set()
        self.cost = 1

    def configure(self, quantum: int, longest_wait: int) -> None:
        self.quantum, self.longest_wait = quantum, longest_wait
        for gpu in self.gpus.values():
            gpu.configure(quantum)

    # -- events

    def set_share(self, uuid: str, container: str, share: Share, now: int) -> GpuMessages:
        gpu = self.gpus.setdefault(uuid, TimeSliceScheduler(self.quantum))
        gpu.set_share(container, share, now)
        return self.tick(uuid, now)

    def remove(self, uuid: str, container: str, now: int) -> GpuMessages:
        before = self._connected(uuid)
        self.gpus[uuid].remove(container, now)
        return self.tick(uuid, now, before)

    def leave(self, uuid: str, member: int, now: int) -> GpuMessages:
        self.gpus[uuid].leave(member, now)
        return self.tick(uuid, now)

    def want(self, uuid: str, container: str, member: int, now: int) -> GpuMessages:
        if self.gpus[uuid].want(container, member, now):
            self._record_use(uuid, container, member, now)
        return self.tick(uuid, now)

    def busy(self, uuid: str, member: int, number: int, now: int) -> GpuMessages:
        if not self.gpus[uuid].busy(member, number, now):
            self.cost = 1
            return []
        return self.tick(uuid, now)

    def done(
        self, uuid: str, member: int, number: int, used: int, again: bool, now: int
    ) -> GpuMessages:
        """Accept the turn that a process returns, as ``TimeSliceScheduler.done`` describes."""
        account = self.gpus[uuid].done(member, number, used, again, now)
        if account is None:
            self.cost = 1
            return []
        if again:
            self._record_use(uuid, account.name, member, now)
        return self.tick(uuid, now)

    def changed_wakeups(self, now: int) -> dict[str, int | None]:
        """Return the value of ``wake_at`` for each GPU that has changed since the last call."""
        changed, self._changed = self._changed, set()
        return {uuid: self.wake_at(uuid, now) for uuid in changed}

    def wake_at(self, uuid: str, now: int) -> int | None:
        """Return when to call ``tick``, or None if no call is due."""
        due = (self.gpus[uuid].wake_at(now), self._recheck_at.get(uuid))
        return min((at for at in due if at is not None), default=None)

    # -- which GPUs belong together

    def _record_use(self, uuid: str, container: str, member: int, now: int) -> None:
        """Record all GPUs that a process uses at the same time as the GPU ``uuid``."""
        others = [other for other, gpu in self.gpus.items() if gpu.is_used_by(member, now)]
        self._record_joint_use(container, uuid, others, now)

    def _record_joint_use(self, container: str, uuid: str, others: Iterable[str], now: int) -> None:
        """Record that a container uses the GPU ``uuid`` and the GPUs ``others`` together.

        Only GPUs with the same guarantee and ceiling as on ``uuid`` are recorded. Work that spans
        GPUs progresses at one rate, so different limits could not hold on all of them.
        """
        share = self.gpus[uuid].accounts[container].share
        found = {uuid}
        for other in others:
            there = self.gpus[other].accounts[container].share
            if (there.guarantee, there.ceiling) == (share.guarantee, share.ceiling):
                found.add(other)
        if len(found) > 1:
            self._sets.setdefault(container, JointSet()).seen.update(dict.fromkeys(found, now))
            self._update_set(container, now)

    def _update_set(self, container: str, now: int) -> None:
        """Recompute which GPUs are in the container's joint set."""
        joint = self._sets[container]
        accounts = {
            uuid: gpu.accounts[container]
            for uuid, gpu in self.gpus.items()
            if container in gpu.accounts
        }
        joint.seen = {
            uuid: at
            for uuid, at in joint.seen.items()
            if uuid in accounts and now - at <= TOGETHER_FOR
        }
        before, joint.gpus = joint.gpus, tuple(sorted(joint.seen)) if len(joint.seen) > 1 else ()
        if not joint.gpus:
            del self._sets[container]
        if joint.gpus == before:
            return
        for uuid in accounts.keys() & {*before, *joint.gpus}:
            accounts[uuid].in_joint_set, accounts[uuid].wants_joint_turn = uuid in joint.gpus, False

    def _connected(self, uuid: str) -> set[str]:
        """Return ``uuid`` and all GPUs that joint sets connect with it, directly or indirectly."""
        connected, grows = {uuid}, True
        while grows:
            grows = False
            for joint in self._sets.values():
                if not connected.issuperset(joint.gpus) and not connected.isdisjoint(joint.gpus):
                    connected.update(joint.gpus)
                    grows = True
        return connected

    # -- after each event

    def tick(self, uuid: str, now: int, before: set[str] | None = None) -> GpuMessages:
        """Update a GPU and the GPUs that are connected with it, and begin turns.

        ``before`` contains the GPUs that were connected until a container was removed.
        """
        messages: GpuMessages = [(uuid, message) for message in self.gpus[uuid].tick(now)]
        connected = (before or set()) | self._connected(uuid)
        self._changed |= connected
        concerned = [
            container
            for container, joint in self._sets.items()
            if not connected.isdisjoint(joint.gpus)
        ]
        self.cost = (len(connected) + len(concerned) + 1) // 2
        for container in concerned:
            if before is not None or now - min(self._sets[container].seen.values()) > TOGETHER_FOR:
                self._update_set(container, now)
        for other in sorted(connected):
            self._join_if_overdue(other, now)
        sets = [name for name, joint in self._sets.items() if connected.issuperset(joint.gpus)]
        self._revoke_overdue(sets, now)
        self._update_requests(sets, now)
        for other in sorted(connected):
            messages += [(other, message) for message in self.gpus[other].tick(now)]
        self._end_unused(sets, now)
        messages += self._begin(connected, sets, now)
        messages += self._align_ends(sets, now)
        return messages

    def _join_if_overdue(self, uuid: str, now: int) -> None:
        """Record a joint use if a container is overdue on a GPU while it waits for other GPUs."""
        gpu = self.gpus[uuid]
        owner = gpu.owner
        if owner is None or owner.in_joint_set or not gpu.is_overdue(now):
            return
        waits = [
            other
            for other, turns in self.gpus.items()
            if owner.name in turns.accounts and turns.accounts[owner.name].waiting
        ]
        self._record_joint_use(owner.name, uuid, waits, now)

    def _accounts(self, container: str) -> list[_GpuAccount]:
        """Return UUID, scheduler and account for each GPU of the container's joint set."""
        gpus = [(uuid, self.gpus[uuid]) for uuid in self._sets[container].gpus]
        return [(uuid, gpu, gpu.accounts[container]) for uuid, gpu in gpus]

    def _owned(self, container: str) -> list[str]:
        """Return those GPUs of the container on which it has the turn."""
        return [uuid for uuid, gpu, account in self._accounts(container) if gpu.owner is account]

    def _update_requests(self, sets: list[str], now: int) -> None:
        """Request all GPUs of a set if its container waits for one of them but has no turn."""
        for container in sets:
            accounts = self._accounts(container)
            asks = (
                any(account.waiting for _, _, account in accounts)
                and not self._owned(container)
                and all(gpu.eligible_at(account) <= now for _, gpu, account in accounts)
            )
            for _, _, account in accounts:
                account.wants_joint_turn = asks

    def _revoke_overdue(self, sets: list[str], now: int) -> None:
        """Revoke the turns of a container that is overdue on one GPU while it waits for another.

        The container is then the next one to get all GPUs of its set, but not twice in a row.
        """
        for container in sets:
            joint, owned = self._sets[container], self._owned(container)
            waits = any(
                account.waiting and gpu.owner is not account
                for _, gpu, account in self._accounts(container)
            )
            overdue = any(self.gpus[uuid].is_overdue(now) for uuid in owned)
            if waits and overdue and not self._joins(container, now):
                for uuid in owned:
                    self.gpus[uuid].revoke(now)
                joint.continues, joint.continued = not joint.continued, False
                joint.joined.clear()

    def _end_unused(self, sets: list[str], now: int) -> None:
        """End a set's turns if no process holds one. Record joint use if processes hold several."""
        for container in sets:
            owned = self._owned(container)
            in_use = [uuid for uuid in owned if self.gpus[uuid].holders]
            if len(in_use) > 1:
                self._sets[container].seen.update(dict.fromkeys(in_use, now))
            if not in_use:
                for uuid in owned:
                    self.gpus[uuid].release(now)

    def _align_ends(self, sets: list[str], now: int) -> GpuMessages:
        """If only some turns of a set have an end, set the earliest of these ends for all turns."""
        messages: GpuMessages = []
        for container in sets:
            owned = self._owned(container)
            ends = [turn.end for turn in self._turns(owned) if turn.end is not None]
            if ends and len(ends) < len(owned):
                for uuid in owned:
                    limits = self.gpus[uuid].end_by(min(ends), now)
                    messages += [(uuid, limit) for limit in limits]
        return messages

    def _turns(self, gpus: Iterable[str]) -> list[Turn]:
        return [turn for uuid in gpus if (turn := self.gpus[uuid].turn) is not None]

    # -- who begins

    def _begin(self, connected: set[str], sets: list[str], now: int) -> GpuMessages:
        messages: GpuMessages = []
        free = {uuid for uuid in connected if self.gpus[uuid].owner is None}
        candidates = self._candidates(connected, sets, now) if free else []
        busy_until = {
            uuid: None if uuid in free else self.gpus[uuid].free_at(now) for uuid in connected
        }
        for begin in turns_to_begin(
            now, candidates, busy_until, self.quantum, self.quantum // SPARE_PART
        ):
            joint = self._sets.get(begin.container)
            if joint is not None and not self._owned(begin.container):
                joint.joined.clear()
            length = self._length(begin, now)
            for uuid in begin.gpus:
                gpu = self.gpus[uuid]
                messages += [(uuid, message) for message in gpu.begin(begin.container, length, now)]
                gpu.accounts[begin.container].wants_joint_turn = False
            free.difference_update(begin.gpus)
            if joint is not None and begin.gpus == joint.gpus:
                joint.continues, joint.continued = False, joint.continues
            elif joint is not None:
                joint.joined.update(begin.gpus)
        for uuid in connected:
            self._recheck_at.pop(uuid, None)
        for candidate in candidates:
            if candidate.reserved_until is None and free.issuperset(candidate.gpus):
                self._recheck_at[candidate.gpus[0]] = now + RECHECK_AFTER
        return messages

    def _candidates(self, connected: set[str], sets: list[str], now: int) -> list[TurnCandidate]:
        found: list[TurnCandidate] = []
        for uuid in sorted(connected):
            gpu = self.gpus[uuid]
            grace = gpu.grace(now)
            if grace is not None:
                account, until = grace
                if gpu.accounts.get(account.name) is account and gpu.eligible_at(account) <= now:
                    rank = self._rank(account.name, uuid, now)
                    found.append(TurnCandidate(rank, account.name, (uuid,), until))
            for account in gpu.accounts.values():
                single = account.waiting and not account.in_joint_set and gpu.owner is not account
                if single and gpu.eligible_at(account) <= now:
                    rank = self._rank(account.name, uuid, now)
                    found.append(TurnCandidate(rank, account.name, (uuid,)))
        for container in sets:
            if self._owned(container):
                found += self._joins(container, now)
            elif any(account.wants_joint_turn for _, _, account in self._accounts(container)):
                gpus = self._sets[container].gpus
                rank = self._rank(container, gpus[0], now)
                # Without reservations, containers whose kernels outlast their turns could delay
                # the set forever.
                waited = now - _waits_since(self._accounts(container), now)
                limits = (self.longest_wait, RESERVED_QUANTA * self.quantum)
                reserve_within = next((limit for limit in limits if waited >= limit), 0)
                found.append(TurnCandidate(rank, container, gpus, reserve_within=reserve_within))
        return found

    def _joins(self, container: str, now: int) -> list[TurnCandidate]:
        """Return the additional turns that a container wants on other GPUs of its set.

        In one round, a container gets at most one additional turn on each GPU. It gets none on a
        GPU on which its turn in this round has reached its end.
        """
        since = min(turn.since for turn in self._turns(self._owned(container)))
        return [
            TurnCandidate((1, -1, 0, gpu.lead(account), account.name), container, (uuid,))
            for uuid, gpu, account in self._accounts(container)
            if account.waiting
            and gpu.owner is not account
            and gpu.eligible_at(account) <= now
            and uuid not in self._sets[container].joined
            and (account.ended_at is None or account.ended_at < since)
        ]

    def _rank(self, container: str, uuid: str, now: int) -> Rank:
        """Return a container's rank on a GPU, or on its joint set if the GPU belongs to the set.

        The rank on a set follows from the GPU that the container has used most, relative to its
        share. So the container exceeds its share on no GPU.
        """
        gpu = self.gpus[uuid]
        account = gpu.accounts[container]
        accounts = self._accounts(container) if account.in_joint_set else [(uuid, gpu, account)]
        # Time in which a ceiling denies a turn is not counted as waiting. Otherwise containers with
        # low ceilings would come first.
        eligible_at = max(gpu.eligible_at(account) for _, gpu, account in accounts)
        since = max(_waits_since(accounts, now), eligible_at)
        if now - since >= self.longest_wait:
            return (0, since, 0, 0, container)
        if account.in_joint_set and self._sets[container].continues:
            return (1, -1, 0, 0, container)
        owed = all(a.share.guarantee > 0 and a.guarantee.level > 0 for _, _, a in accounts)
        priority = min(a.share.priority for _, _, a in accounts)
        lead = max(gpu.lead(account) for _, gpu, account in accounts)
        return (1, 0 if owed else 1, -priority, lead, container)

    def _length(self, begin: Begin, now: int) -> int:
        """Return the length of a turn, or 0 if it lasts until others want one of its GPUs."""
        gpus = [self.gpus[uuid] for uuid in begin.gpus]
        bounds = [
            length for gpu in gpus if (length := gpu.length(gpu.accounts[begin.container], now))
        ]
        if begin.container in self._sets:
            turns = self._turns(self._owned(begin.container))
            ends = [turn.end for turn in turns if turn.end is not None]
            bounds += [max(self.quantum // 4, end - now) for end in ends]
        if begin.by is not None:
            bounds.append(begin.by - now)
        return min(bounds, default=0)


def _waits_since(accounts: Iterable[_GpuAccount], now: int) -> int:
    since = [account.waits_since for _, _, account in accounts]
    return min((at for at in since if at is not None), default=now)
