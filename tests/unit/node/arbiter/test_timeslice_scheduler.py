"""Who gets one GPU's turns: shares, ceilings, debts, priorities, and that nobody starves."""

import pytest

from gputile.node.arbiter.accounts import WHOLE, Grant, Limit, Share
from gputile.node.arbiter.timeslice_scheduler import MS
from tests.unit.node.arbiter.machine import Client, Machine, OneGpu, percent

Q = 30 * MS


def run(*clients: Client, seconds: float = 20.0) -> list[float]:
    machine = Machine(list(clients))
    machine.run(int(seconds * 1e9))
    return machine.shares()


@pytest.mark.requirement("M4")
def test_alone_without_a_cap_nothing_is_measured() -> None:
    """One turn for ever."""
    client = Client("a", Share())
    machine = Machine([client])
    machine.run(10**10)
    assert client.starts == [0]
    assert machine.turns.wake_at(machine.now) is None


@pytest.mark.requirement("G4")
@pytest.mark.parametrize("part", [100, 30, 5])
def test_a_low_priority_does_not_starve(part: int) -> None:
    """It waits no longer than the bound and one turn, from when its ceiling lets it have one."""
    high, low = Client("high", Share(priority=100)), Client("low", Share(ceiling=WHOLE // 100 * part))
    machine = Machine([high, low])
    machine.run(20 * 10**9)
    assert high.busy / machine.now > 0.93
    assert low.busy / machine.now > 0.01
    assert low.longest_wait <= 1000 * MS + 2 * Q + Q * 100 // part


@pytest.mark.requirement("M5")
def test_low_ceilings_do_not_go_before_a_high_one() -> None:
    """A container that waits because of its own ceiling is not one that waits too long."""
    few, *_ = run(Client("50 %", percent(50), 20 * MS), *(Client(f"{i}", percent(3), 40 * MS) for i in range(15)))
    assert few > 0.45


def test_a_guarantee_goes_before_priority() -> None:
    """What is guaranteed is had even beside a pod of higher priority; the rest goes to that one."""
    a, b = run(Client("a", Share(guarantee=WHOLE // 5)), Client("b", Share(priority=9)))
    assert a == pytest.approx(0.2, rel=0.1)
    assert b > 0.75


@pytest.mark.parametrize(("used", "charged"), [(10 * MS, 10 * MS), (0, 5 * MS), (90 * MS, 20 * MS)])
def test_what_is_charged_is_between_a_quarter_of_the_turn_and_all_of_it(used: int, charged: int) -> None:
    turns = OneGpu(Q)
    turns.put("a", percent(50), 0)
    turns.want("a", 1, 0)
    turns.done(1, 1, used, False, 20 * MS)
    assert turns.accounts["a"].used == charged


@pytest.mark.requirement("M5")
def test_a_turn_without_end_ends_when_its_container_gets_a_ceiling() -> None:
    """Nobody else need want the GPU for that."""
    turns = OneGpu(Q)
    turns.put("a", Share(), 0)
    assert turns.want("a", 1, 0) == [Grant(1, 1, 0)]
    assert turns.put("a", percent(20), 1000 * MS) == [Limit(1, 1, 0)]


def test_nobody_pays_for_an_arbiter_that_slept() -> None:
    turns = OneGpu(Q)
    for name in "ab":
        turns.put(name, percent(50), 0)
    turns.want("a", 1, 0)
    turns.want("b", 2, 0)
    turns.leave(1, 5000 * MS)
    assert turns.accounts["a"].used <= 2 * Q


@pytest.mark.requirement("M5")
@pytest.mark.parametrize("others", [[], [Client("now and then", Share(), back=300 * MS)]])
def test_what_nobody_else_wanted_takes_nothing_off_a_guarantee(others: list[Client]) -> None:
    """One that had nearly all of the GPU for a minute gets its 30 % as soon as one of higher priority comes."""
    clients = [Client("a", Share(guarantee=WHOLE * 3 // 10)), Client("b", Share(priority=9)), *others]
    machine = Machine(clients, late={1: 60_000 * MS})
    machine.run(60_000 * MS)
    had = clients[0].busy + machine.runs_for(0)
    machine.run(63_000 * MS)
    got = clients[0].busy + machine.runs_for(0) - had
    assert got / (3000 * MS) == pytest.approx(0.3, abs=0.05)


@pytest.mark.requirement("G4")
def test_work_of_a_time_alone_is_owed_for_a_quantum_at_most() -> None:
    """What was submitted before another came outlasts the turn, but does not keep its owner away for as long."""
    turns = OneGpu(Q)
    turns.put("a", Share(), 0)
    turns.put("b", Share(), 0)
    assert turns.want("a", 1, 0) == [Grant(1, 1, 0)]
    now = 10_000 * MS
    assert turns.want("b", 2, now) == [Limit(1, 1, 0)]
    for passed in range(0, 400, 10):
        turns.busy(1, 1, now + passed * MS)
    said = turns.done(1, 1, 10_400 * MS, again=True, now=now + 400 * MS)
    had = 0
    now += 400 * MS
    while (grant := next(g for g in said if isinstance(g, Grant))).member == 2:
        now += Q
        had += Q
        said = turns.done(2, grant.turn, Q, again=True, now=now)
    assert had <= 2 * Q


@pytest.mark.requirement("B7")
def test_what_a_container_waited_for_its_turns_is_counted() -> None:
    turns = OneGpu(Q)
    for name, member in (("a", 1), ("b", 2)):
        turns.put(name, Share(), 0)
        turns.want(name, member, 0)
    assert (turns.waited("a", 10 * MS), turns.waited("b", 10 * MS)) == (0, 10 * MS)
    turns.done(1, 1, Q, again=False, now=Q)
    assert turns.waited("b", 2 * Q) == Q, "it has the GPU since the other gave it back"
    assert turns.waited("a", 2 * Q) == 0
