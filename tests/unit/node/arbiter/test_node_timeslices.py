"""Containers that use several GPUs together: what they get done on a simulated node, and what others do."""

import pickle
from itertools import pairwise

import pytest

from gputile.node.arbiter.accounts import Grant, Limit, Share
from gputile.node.arbiter.joint_turns import Begin, TurnCandidate, turns_to_begin
from gputile.node.arbiter.node_timeslices import NodeTimeSlices
from gputile.node.arbiter.timeslice_scheduler import MOST_HOLDERS, MS
from tests.unit.node.arbiter.collective import Job, Node
from tests.unit.node.arbiter.machine import OneGpu, percent

Q = 30 * MS
BOTH = ("A", "B")
SECOND = 10**9


def rates(*jobs: Job, seconds: int = 10, longest_wait: int = 1000 * MS) -> list[float]:
    """Return the kernels a second of each job, after two seconds in which they find each other."""
    node = Node(jobs, longest_wait=longest_wait)
    node.run(2 * SECOND)
    had = [job.done for job in jobs]
    node.run((2 + seconds) * SECOND)
    return [(job.done - before) / seconds for job, before in zip(jobs, had, strict=True)]


@pytest.mark.requirement("G4")
@pytest.mark.parametrize("processes", [False, True])
def test_weights_hold_over_several_gpus(processes: bool) -> None:
    """1 to 3 is 1 to 3, and beside one on a single GPU each has its part of that."""
    (x, y) = rates(Job("x", BOTH, Share(1), processes=processes), Job("y", BOTH, Share(3), processes=processes))
    assert y / x == pytest.approx(3, rel=0.03)
    (x, y, z) = rates(
        Job("x", BOTH, processes=processes), Job("y", BOTH, processes=processes), Job("z", ("A",), Share(2))
    )
    assert x == pytest.approx(y, rel=0.05)
    assert z / x == pytest.approx(2, rel=0.05)


@pytest.mark.requirement("M5")
@pytest.mark.parametrize("processes", [False, True])
def test_percentages_hold_over_several_gpus(processes: bool) -> None:
    """30 % and 60 % of both GPUs."""
    (x, y) = rates(Job("x", BOTH, percent(30), processes=processes), Job("y", BOTH, percent(60), processes=processes))
    assert x / 200 == pytest.approx(0.30, rel=0.02)
    assert y / 200 == pytest.approx(0.60, rel=0.02)


@pytest.mark.requirement("M5", "G4")
@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("kernel", [20 * MS, 29 * MS, 45 * MS, 200 * MS])
def test_kernels_that_outlast_their_turns_do_not_starve_a_set(kernel: int, processes: bool) -> None:
    """Those of the others end at the same moment, and each begins again before the last of them has ended."""
    others = [Job("c", ("C",), kernel=kernel), Job("ab", BOTH, kernel=kernel, processes=processes)]
    both = Job("abc", ("A", "B", "C"), between=3 * MS, processes=processes)
    got = rates(*others, both)
    assert max(later - earlier for earlier, later in pairwise([0, *both.finished, 12 * SECOND])) < 1500 * MS
    assert min(rate * kernel / SECOND for rate in got[:2]) > 0.3


def test_processes_with_work_of_their_own_are_not_tied() -> None:
    """One process a GPU, and nothing over several: B is not kept from those who could use all of it."""
    (x, y, z) = rates(*(Job(name, BOTH, processes=True, apart=True) for name in "xy"), Job("z", ("A",)))
    assert z > 64
    assert x + y > 64 * 2 + 190, "B's time is all theirs"


def test_gpus_with_different_ceilings_are_apart() -> None:
    """What can be had of both only at the lower ceiling is not one set: B is used in full."""
    node = NodeTimeSlices(Q)
    node.set_share("A", "x", percent(20), 0)
    node.set_share("B", "x", Share(), 0)
    node.set_share("B", "y", Share(), 0)
    assert [gpu for gpu, _ in node.want("A", "x", 1, 0) + node.want("B", "x", 1, 0)] == ["A", "B"]
    node.done("A", 1, 1, Q, True, Q)
    assert [(gpu, type(i)) for gpu, i in node.want("B", "y", 2, Q)] == [("B", Limit)]
    assert node.gpus["A"].accounts["x"].in_joint_set is False


def both(longest_wait: int = 1000 * MS) -> NodeTimeSlices:
    """A node on which x uses A and B together, and y is on A, z on B."""
    node = NodeTimeSlices(Q, longest_wait)
    for gpu, names in (("A", "xy"), ("B", "xz")):
        for name in names:
            node.set_share(gpu, name, Share(), 0)
    node.want("A", "x", 1, 0)
    node.want("B", "x", 1, 0)
    return node


def test_a_set_is_limited_and_ends_as_one() -> None:
    node = both()
    said = node.want("A", "y", 2, 40 * MS)
    assert sorted((gpu, type(i), i.remaining) for gpu, i in said if isinstance(i, Limit)) == [
        ("A", Limit, 0),
        ("B", Limit, 0),
    ]


def test_a_turn_on_another_gpu_is_kept_for_a_moment() -> None:
    """It is there for the set's next kernel; nobody comes for it within a sixth of a quantum, and it is another's."""
    node = both()
    node.want("A", "y", 2, 0)
    node.want("B", "z", 3, 0)
    node.done("B", 1, 1, 5 * MS, False, 6 * MS)
    assert node.tick("B", 10 * MS) == []
    assert node.want("B", "x", 1, 10 * MS) == [("B", Grant(1, 1, 20 * MS))]
    node.done("B", 1, 1, 5 * MS, False, 12 * MS)
    at = node.wake_at("B", 12 * MS)
    assert at == 12 * MS + Q // 6
    assert node.tick("B", at) == [("B", Grant(3, 2, Q))]


def test_one_that_is_removed_from_one_gpu_of_its_set() -> None:
    node = both()
    node.want("A", "y", 2, 0)
    assert node.remove("A", "x", 5 * MS) == [("A", Grant(2, 2, 0))]
    assert node.gpus["B"].accounts["x"].in_joint_set is False
    assert node.want("B", "z", 3, 6 * MS) == []
    assert node.done("B", 1, 1, Q, True, Q) == [("B", Grant(3, 2, Q))]


def test_no_more_than_so_many_processes_have_a_turn_at_once() -> None:
    """Those of a container that are too many wait for its next turn, the first that came first."""
    turns = OneGpu(Q)
    for name in "ab":
        turns.put(name, Share(), 0)
    turns.want("b", 1000, 0)
    for member in range(100):
        turns.want("a", member, 0)
    said = turns.done(1000, 1, MS, True, MS)
    assert [i.member for i in said] == list(range(MOST_HOLDERS))
    number = next(i.turn for i in said)
    for member in range(MOST_HOLDERS):
        said = turns.done(member, number, Q, True, MS + Q)
    assert [i.member for i in said] == [1000], "and another container is not kept waiting by them"
    said = turns.done(1000, number + 1, Q, False, MS + 2 * Q)
    assert [i.member for i in said] == [*range(MOST_HOLDERS, 100), *range(2 * MOST_HOLDERS - 100)]


def test_the_plan_lets_nobody_be_late_for_those_after_him() -> None:
    """Conservative backfilling: one that is earlier begins when it could without the others."""

    def begun(busy: dict[str, int | None], *wanted: tuple[str, int]) -> list[Begin]:
        candidates = [TurnCandidate((1, 1, 0, rank, gpus), gpus, tuple(gpus)) for gpus, rank in wanted]
        return turns_to_begin(0, candidates, busy, Q, 5 * MS)

    assert begun({"A": None, "B": None}, ("AB", 0), ("A", 1)) == [Begin("AB", ("A", "B"), None)]
    assert begun({"A": None, "B": 10 * MS}, ("AB", 0), ("A", 1)) == [Begin("A", ("A",), 10 * MS)], "it fits before"
    assert begun({"A": None, "B": 4 * MS}, ("AB", 0), ("A", 1)) == [], "it does not"
    assert begun({"A": None, "B": 4 * MS}, ("AB", 1), ("A", 0)) == [Begin("A", ("A",), None)]
    waited = TurnCandidate((1, 1, 0, 0, "AB"), "AB", ("A", "B"), reserve_within=20 * MS)
    other = TurnCandidate((1, 1, 0, 1, "A"), "A", ("A",))
    assert turns_to_begin(0, [waited, other], {"A": None, "B": 20 * MS}, Q, 5 * MS) == [], (
        "it might not be back in time"
    )
    assert turns_to_begin(0, [waited, other], {"A": None, "B": 21 * MS}, Q, 5 * MS) == [Begin("A", ("A",), 21 * MS)]
    assert begun({"A": 9 * MS, "B": None, "C": None}, ("AB", 0), ("BC", 1)) == [Begin("BC", ("B", "C"), 9 * MS)]


@pytest.mark.requirement("M5")
def test_nothing_is_kept_of_containers_and_processes_that_are_gone() -> None:
    """Containers come and go for months; what is kept of them goes with them, in whatever order they end."""
    node = both()
    before = len(pickle.dumps(node))
    for number in range(1000):
        name, members = str(number), (2 * number + 100, 2 * number + 101)
        for gpu in BOTH:
            node.set_share(gpu, name, Share(), number)
            for member in members:
                node.want(gpu, name, member, number)
        assert node.gpus["A"].accounts[name].in_joint_set
        for gpu in BOTH:
            if number % 2:
                node.leave(gpu, members[0], number)
            node.remove(gpu, name, number)
    assert len(pickle.dumps(node)) < before + 100
