"""The turns on one GPU, whatever containers and processes do: never two containers at once, nobody waits for ever.

What must hold after every step:

* the processes whose turn it is are of one container, were told so, and had asked;
* a GPU is free only while nobody who may have it waits, but for a millisecond after a turn;
* who waits and may have the GPU gets it within a bound;
* a container under a ceiling has been charged no more than that, a burst and its last turn.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gputile.node.arbiter.accounts import WHOLE, Grant, Limit, Share, TimesliceMessage
from gputile.node.arbiter.node_timeslices import RECHECK_AFTER, RESERVED_QUANTA, GpuMessages, NodeTimeSlices
from gputile.node.arbiter.timeslice_scheduler import GRACE, MOST_OVERRUN, MOST_OWED, MS
from tests.conftest import examples
from tests.unit.node.arbiter.machine import Client, Machine, OneGpu

QUANTUM, LONGEST_WAIT = 30 * MS, 300 * MS
NAMES = ("a", "b", "c", "d")
MEMBERS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "d"}
names, members = st.sampled_from(NAMES), st.sampled_from(sorted(MEMBERS))
shares = st.builds(
    Share,
    st.sampled_from([1, 2, 3, 100]),
    st.sampled_from([0, 0, WHOLE // 10]),
    st.sampled_from([WHOLE, WHOLE, WHOLE // 2, WHOLE // 5]),
    st.sampled_from([0, 0, 5]),
)


class Turns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.turns = OneGpu(QUANTUM, LONGEST_WAIT)
        self.now = 0
        self.asked: dict[int, int] = {}
        self.holds: dict[int, tuple[int, int | None]] = {}
        self.blocked_since: dict[str, int] = {}
        self.shares: dict[str, tuple[Share, int, int]] = {}

    def follow(self, said: list[TimesliceMessage]) -> None:
        for instruction in said:
            member = instruction.member
            if isinstance(instruction, Grant):
                assert member in self.asked, "nobody asked"
                del self.asked[member]
                end = self.now + instruction.length if instruction.length else None
                self.holds[member] = (instruction.turn, end)
            else:
                assert isinstance(instruction, Limit)
                assert self.holds[member][0] == instruction.turn
                self.holds[member] = (instruction.turn, self.now + instruction.remaining)

    def put_in(self, name: str, share: Share) -> None:
        self.follow(self.turns.put(name, share, self.now))
        self.shares[name] = (share, self.now, self.turns.accounts[name].used)

    @rule(name=names, share=shares)
    def put(self, name: str, share: Share) -> None:
        self.put_in(name, share)

    @rule(name=names)
    def remove(self, name: str) -> None:
        for member in [m for m, owner in MEMBERS.items() if owner == name]:
            self.asked.pop(member, None)
            self.holds.pop(member, None)
        self.shares.pop(name, None)
        self.follow(self.turns.remove(name, self.now))

    @rule(member=members)
    def want(self, member: int) -> None:
        name = MEMBERS[member]
        if name in self.turns.accounts and member not in self.holds:
            self.asked[member] = self.asked.get(member, self.now)
        self.follow(self.turns.want(name, member, self.now))

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), used=st.integers(0, 2 * QUANTUM), again=st.booleans())
    def done(self, data: st.DataObject, used: int, again: bool) -> None:
        member = data.draw(st.sampled_from(sorted(self.holds)))
        turn, _ = self.holds.pop(member)
        if again:
            self.asked[member] = self.now
        self.follow(self.turns.done(member, turn, used, again, self.now))

    @rule(member=members, turn=st.integers(1, 30), used=st.integers(0, 2**64 - 1))
    def lie(self, member: int, turn: int, used: int) -> None:
        """Nobody gives back what is another's, or a turn that he has not."""
        if self.holds.get(member, (0, None))[0] != turn and member not in self.holds:
            self.follow(self.turns.done(member, turn, used, False, self.now))
            self.follow(self.turns.busy(member, turn, self.now))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def busy(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.holds)))
        self.follow(self.turns.busy(member, self.holds[member][0], self.now))

    @rule(member=members)
    def leave(self, member: int) -> None:
        self.asked.pop(member, None)
        self.holds.pop(member, None)
        self.follow(self.turns.leave(member, self.now))

    @rule(step=st.sampled_from([1, MS // 2, GRACE, 5 * MS, QUANTUM, 4 * QUANTUM, 1000 * MS]))
    def wait(self, step: int) -> None:
        until = self.now + step
        while (wake := self.turns.wake_at(self.now)) is not None and wake <= until:
            assert wake > self.now, "it would be woken without end"
            self.now = wake
            self.follow(self.turns.tick(self.now))
            self.nobody_waits_for_ever()
        self.now = until

    @invariant()
    def one_container_holds(self) -> None:
        holders = self.turns.holders
        assert len({MEMBERS[member] for member in holders}) <= 1
        assert holders <= self.holds.keys()

    @invariant()
    def the_gpu_is_not_left_idle(self) -> None:
        waiting = [account for account in self.turns.accounts.values() if account.waiting]
        ready = [account for account in waiting if not account.has_ceiling or account.ceiling.level > QUANTUM]
        wake = self.turns.wake_at(self.now)
        assert self.turns.holders or not ready or (wake is not None and wake <= self.now + GRACE)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        bound = LONGEST_WAIT + (len(NAMES) + 1) * (2 * QUANTUM + MOST_OVERRUN + GRACE)
        owners = {MEMBERS[m] for m in self.turns.holders}
        for account in self.turns.accounts.values():
            if account.waiting and not account.has_ceiling and account.name not in owners:
                since = self.blocked_since.setdefault(account.name, self.now)
                assert self.now - since <= bound, account.name
            else:
                self.blocked_since.pop(account.name, None)
        for name in self.blocked_since.keys() - self.turns.accounts.keys():
            del self.blocked_since[name]

    @invariant()
    def ceilings_hold(self) -> None:
        for name, (share, since, before) in self.shares.items():
            account = self.turns.accounts[name]
            last_turn = 2 * QUANTUM + MOST_OVERRUN
            overrun = MOST_OWED * sum(owner == name for owner in MEMBERS.values())
            burst = 2 * QUANTUM + last_turn + overrun
            if account.has_ceiling and not account.overrun:
                assert account.used - before <= (self.now - since) * share.ceiling // WHOLE + burst


GPUS = ("A", "B", "C")
SETS = {"x": ("A", "B"), "y": ("B", "C"), "z": ("A", "B", "C"), "a": ("A",), "b": ("B",)}
PROCESSES = {1: "x", 2: "y", 3: "y", 4: "z", 5: "a", 6: "b", 7: "x"}
SPARE, LATE = QUANTUM // 6, RESERVED_QUANTA * QUANTUM


def tied_in(node: NodeTimeSlices) -> dict[str, set[str]]:
    """Return the GPUs that each container uses together."""
    return {name: {gpu for gpu in gpus if node.gpus[gpu].accounts[name].in_joint_set} for name, gpus in SETS.items()}


class Sets(RuleBasedStateMachine):
    """Containers that use several GPUs together, beside others on one.

    What must hold after every step, beside what holds for one GPU:

    * a container that has none of its set's GPUs gets all of them, or none;
    * who waits and may have the GPU gets it within a bound, whatever sets others have;
    * what a process says changes nothing of which GPUs another container uses together;
    * no GPU is kept idle for a set for longer than two sixths of a quantum while one of a single GPU waits for it; for
      a set that has waited for long, for no longer than the rest of a turn and the longest wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = NodeTimeSlices(QUANTUM, LONGEST_WAIT)
        self.now = 0
        self.asked: set[tuple[int, str]] = set()
        self.holds: dict[tuple[int, str], int] = {}
        self.blocked_since: dict[tuple[str, str], int] = {}
        self.idle_since: dict[str, int] = {}
        for name, gpus in SETS.items():
            for gpu in gpus:
                self.node.set_share(gpu, name, Share(2 if name == "x" else 1), 0)

    def owned(self) -> dict[str, set[str]]:
        """Return the GPUs on which each container has the turn."""
        found: dict[str, set[str]] = {name: set() for name in SETS}
        for gpu in GPUS:
            owner = self.node.gpus[gpu].owner
            if owner is not None:
                found[owner.name].add(gpu)
        return found

    def follow(self, before: dict[str, set[str]], said: GpuMessages) -> None:
        after = self.owned()
        for gpu, instruction in said:
            key = (instruction.member, gpu)
            if isinstance(instruction, Limit):
                assert self.holds[key] == instruction.turn
                continue
            assert key in self.asked, "nobody asked"
            self.asked.discard(key)
            self.holds[key] = instruction.turn
            name = PROCESSES[instruction.member]
            tied = {c for c in SETS[name] if self.node.gpus[c].accounts[name].in_joint_set}
            if gpu in tied and not before[name] & tied:
                assert after[name] >= tied, "whole or not at all"

    def say(self, member: int, message: Callable[[NodeTimeSlices], GpuMessages]) -> None:
        """Take in what a process says, and see that it ties and parts GPUs of its own container only.

        What the time alone would change at that moment may change.
        """
        before, tied = self.owned(), tied_in(self.node)
        silent = deepcopy(self.node)
        self.follow(before, message(self.node))
        for name, gpus in tied_in(self.node).items():
            if gpus != tied[name] and name != PROCESSES[member]:
                for gpu in GPUS:
                    silent.tick(gpu, self.now)
                assert gpus == tied_in(silent)[name], name

    @rule(member=st.sampled_from(sorted(PROCESSES)), data=st.data())
    def want(self, member: int, data: st.DataObject) -> None:
        gpu = data.draw(st.sampled_from(SETS[PROCESSES[member]]))
        if (member, gpu) not in self.holds:
            self.asked.add((member, gpu))
        self.say(member, lambda node: node.want(gpu, PROCESSES[member], member, self.now))

    @rule(
        member=st.sampled_from(sorted(PROCESSES)), data=st.data(), used=st.integers(0, 2**64 - 1), again=st.booleans()
    )
    def lie(self, member: int, data: st.DataObject, used: int, again: bool) -> None:
        """Nobody gives back what is another's, perhaps by the number of its turn, and none is alive for another."""
        gpu = data.draw(st.sampled_from(SETS[PROCESSES[member]]))
        turns = [turn for (_, where), turn in self.holds.items() if where == gpu]
        turn = data.draw(st.sampled_from([*turns, 4242]))
        if (member, gpu) not in self.holds:
            self.say(member, lambda node: node.done(gpu, member, turn, used, again, self.now))
            self.say(member, lambda node: node.busy(gpu, member, turn, self.now))

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), used=st.integers(0, 2 * QUANTUM), again=st.booleans())
    def done(self, data: st.DataObject, used: int, again: bool) -> None:
        member, gpu = data.draw(st.sampled_from(sorted(self.holds)))
        turn = self.holds.pop((member, gpu))
        if again:
            self.asked.add((member, gpu))
        self.say(member, lambda node: node.done(gpu, member, turn, used, again, self.now))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def busy(self, data: st.DataObject) -> None:
        member, gpu = data.draw(st.sampled_from(sorted(self.holds)))
        self.say(member, lambda node: node.busy(gpu, member, self.holds[member, gpu], self.now))

    @rule(member=st.sampled_from(sorted(PROCESSES)))
    def leave(self, member: int) -> None:
        for gpu in SETS[PROCESSES[member]]:
            self.asked.discard((member, gpu))
            self.holds.pop((member, gpu), None)
            self.say(member, lambda node, gpu=gpu: node.leave(gpu, member, self.now))  # type: ignore[misc]

    @rule(step=st.sampled_from([1, MS // 2, GRACE, 5 * MS, QUANTUM, 4 * QUANTUM, 1000 * MS]), alive=st.booleans())
    def wait(self, step: int, alive: bool) -> None:
        """With holders that are ``alive`` and say so, turns last as long as they may."""
        until, said_at = self.now + step, self.now
        while True:
            due = {gpu: at for gpu in GPUS if (at := self.node.wake_at(gpu, self.now)) is not None}
            following = [at for at in (*due.values(), *([said_at + QUANTUM // 2] if alive else [])) if at <= until]
            if not following:
                break
            assert min(following) > self.now, "it would be woken without end"
            self.now = min(following)
            for gpu in [gpu for gpu, at in due.items() if at <= self.now]:
                before = self.owned()
                self.follow(before, self.node.tick(gpu, self.now))
            if alive and self.now >= said_at + QUANTUM // 2:
                said_at = self.now
                for (member, gpu), turn in sorted(self.holds.items()):
                    before = self.owned()
                    self.follow(before, self.node.busy(gpu, member, turn, self.now))
            self.nobody_waits_for_ever()
            self.gpus_are_not_idle()
        self.now = until

    @invariant()
    def one_container_holds_each_gpu(self) -> None:
        for gpu in GPUS:
            holders = self.node.gpus[gpu].holders
            assert len({PROCESSES[member] for member in holders}) <= 1
            assert all((member, gpu) in self.holds for member in holders)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        """Each of those before has a round: a turn, its overrun, and once more for each GPU that it joins."""
        round_ = (1 + len(GPUS)) * (QUANTUM + MOST_OVERRUN + GRACE) + 2 * SPARE
        bound = LONGEST_WAIT + 2 * len(SETS) * round_
        owned = self.owned()
        for name, gpus in SETS.items():
            for gpu in gpus:
                account = self.node.gpus[gpu].accounts[name]
                if (
                    account.waiting
                    and not owned[name]
                    and not any(self.node.gpus[c].accounts[name].overrun for c in gpus)
                ):
                    since = self.blocked_since.setdefault((name, gpu), self.now)
                    assert self.now - since <= bound, (name, gpu)
                else:
                    self.blocked_since.pop((name, gpu), None)

    def waits_for_long(self, gpu: str) -> bool:
        """Return whether a set that the GPU is of has waited for so long that others are kept off its GPUs."""
        return any(
            account.wants_joint_turn and account.waits_since is not None and self.now - account.waits_since >= LATE
            for name, gpus in SETS.items()
            if gpu in gpus
            for account in (self.node.gpus[each].accounts[name] for each in gpus)
        )

    @invariant()
    def gpus_are_not_idle(self) -> None:
        for gpu in GPUS:
            turns = self.node.gpus[gpu]
            single = any(account.waiting and not account.in_joint_set for account in turns.accounts.values())
            if turns.owner is None and single:
                since = self.idle_since.setdefault(gpu, self.now)
                late = LONGEST_WAIT + QUANTUM if self.waits_for_long(gpu) else 0
                assert self.now - since <= late + 2 * SPARE + GRACE + RECHECK_AFTER, gpu
            else:
                self.idle_since.pop(gpu, None)


Sets.TestCase.settings = settings(max_examples=examples(75), stateful_step_count=60, deadline=None)
TestSets = Sets.TestCase

Turns.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
TestTurns = Turns.TestCase

busy_client = st.tuples(
    st.integers(1, 8), st.sampled_from([MS // 10, MS, 7 * MS, 45 * MS]), st.sampled_from([0, MS // 3])
)


@pytest.mark.requirement("G4")
@settings(max_examples=examples(20), deadline=None)
@given(st.lists(busy_client, min_size=2, max_size=6))
def test_shares_converge_to_the_weights(drawn: list[tuple[int, int, int]]) -> None:
    """Whatever the length of kernels, and whether one asks again at once."""
    clients = [Client(f"c{i}", Share(weight), kernel, back) for i, (weight, kernel, back) in enumerate(drawn)]
    machine = Machine(clients, longest_wait=10**12)
    machine.run(60 * 10**9)
    total, weights = sum(client.busy for client in clients), sum(client.share.weight for client in clients)
    for client in clients:
        assert client.busy / total == pytest.approx(client.share.weight / weights, rel=0.05)
    assert total / machine.now > 0.94


late_client = st.tuples(st.integers(1, 8), st.sampled_from([MS // 10, MS, 7 * MS]), st.integers(0, 20_000))


@pytest.mark.requirement("G4")
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(late_client, min_size=2, max_size=5))
def test_weights_hold_from_the_last_arrival_on(drawn: list[tuple[int, int, int]]) -> None:
    """Whoever was alone before, and for however long: within 100 turns each has its part, but for two turns."""
    clients = [Client(f"c{i}", Share(weight), kernel) for i, (weight, kernel, _) in enumerate(drawn)]
    late = {i: at * MS for i, (_, _, at) in enumerate(drawn)}
    machine = Machine(clients, longest_wait=10**12, late=late)
    machine.run(max(late.values()) + QUANTUM)
    before = [client.busy + machine.runs_for(i) for i, client in enumerate(clients)]
    machine.run(machine.now + 100 * QUANTUM)
    got = [client.busy + machine.runs_for(i) - had for i, (client, had) in enumerate(zip(clients, before, strict=True))]
    weights = sum(client.share.weight for client in clients)
    for client, part in zip(clients, got, strict=True):
        assert abs(part - sum(got) * client.share.weight / weights) <= 2 * (QUANTUM + client.kernel)


@pytest.mark.requirement("M5")
@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([MS, 7 * MS, 45 * MS])), min_size=1, max_size=6))
def test_percentages_are_had_and_kept_to(drawn: list[tuple[int, int]]) -> None:
    """Each gets what it asked for as long as all together ask for no more than 90 %, and never more."""
    parts, clients = [5 * tenth for tenth, _ in drawn], []
    factor = min(1.0, 90 / sum(parts))
    for i, (part, (_, kernel)) in enumerate(zip(parts, drawn, strict=True)):
        millionths = int(part * factor * WHOLE / 100)
        clients.append(Client(f"c{i}", Share(part, millionths, millionths), kernel))
    machine = Machine(clients)
    machine.run(60 * 10**9)
    for client in clients:
        wanted = client.share.ceiling / WHOLE
        assert client.busy / machine.now == pytest.approx(wanted, rel=0.05, abs=0.002)
