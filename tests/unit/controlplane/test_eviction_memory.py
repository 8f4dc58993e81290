"""Who was refused is not chosen for a while; of a gang that is to leave whole those that stay are asked again."""

import pytest

from gputile.controlplane.eviction_memory import (
    FIRST_PAUSE_S,
    LASTS_S,
    LONGEST_PAUSE_S,
    RETRY_S,
    HalfLeftGangs,
    RefusedEvictions,
)
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.kube.errors import AnswerLost, ApiError, KubeError, ServerError, TooManyRequests, Unauthorized

pytestmark = pytest.mark.requirement("B5", "M13")


BUDGET = TooManyRequests(429, "TooManyRequests", "the budget does not allow it")


class Refusals:
    """A clock that is set by hand, and pods that are bound."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.bound = {"a", "b"}
        self.evictions = RefusedEvictions(lambda: self.now, self.bound.__contains__)

    def pause(self) -> float:
        """Let time pass until the pod ``a`` may be chosen again; return how long that took."""
        begun = self.now
        while self.evictions.among(["a"]):
            self.now += 1
        return self.now - begun


def test_pauses_grow_and_end() -> None:
    clock, pauses = Refusals(), []
    for _ in range(8):
        clock.evictions.refused("a", BUDGET)
        clock.evictions.refused("a", BUDGET)  # asked again at once: the pause begins anew, and is no longer
        assert clock.evictions.among(["b", "a"]) == ["a"]
        pauses.append(clock.pause())
    assert pauses[:2] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (BUDGET, True),
        (ServerError(500, "InternalError", "a webhook failed"), True),
        (ApiError(400, "BadRequest", "a webhook said no"), True),
        (ServerError(503, "ServiceUnavailable", "it begins"), False),
        (Unauthorized(401, "Unauthorized", "who is that"), False),
        (AnswerLost("the connection broke"), False),
        (KubeError("nothing was sent"), False),
    ],
)
def test_only_what_is_said_of_the_pod_counts(error: KubeError, counts: bool) -> None:
    clock = Refusals()
    clock.evictions.refused("a", error)
    assert bool(clock.evictions.among(["a"])) is counts


@pytest.mark.parametrize("jump", [-500.0, 10_000.0])
def test_a_clock_that_jumps_ends_pauses(jump: float) -> None:
    clock = Refusals()
    clock.evictions.refused("a", BUDGET)
    clock.now += jump
    assert clock.evictions.among(["a"]) == []


def test_no_more_is_remembered_than_pods_that_are_bound() -> None:
    clock = Refusals()
    for uid in ("a", "b", "gone"):
        clock.evictions.refused(uid, BUDGET)
    clock.bound.clear()
    clock.evictions.refused("c", BUDGET)
    assert len(clock.evictions) == 1


def test_who_may_be_refused_is_asked_first() -> None:
    clock = Refusals()
    clock.evictions.refused("b", BUDGET)
    clock.now += FIRST_PAUSE_S + 1
    assert clock.evictions.first(["a", "b"]) == ["b", "a"]


GANG = GangName("default", "g", False)


class Clock:
    """A clock that is set by hand, and the pods of one gang."""

    def __init__(self, *uids: str, size: int = 0, gang: GangName = GANG) -> None:
        self.now, self.size, self.gang = 1000.0, size, gang
        self.facts: dict[str, EvictionFacts] = {}
        self.gangs: dict[GangName, set[str]] = {gang: set()}
        for uid in uids:
            self.comes(uid)
        self.half_left = HalfLeftGangs(lambda: self.now, self.facts, self.gangs)

    def comes(self, uid: str) -> None:
        self.facts[uid] = EvictionFacts("default", uid, gang=self.gang, gang_size=self.size)
        self.gangs[self.gang].add(uid)

    def goes(self, uid: str) -> None:
        del self.facts[uid]
        self.gangs[self.gang].discard(uid)

    def begin(self, *uids: str, group_size: int = 0, preemptor: str = "p", told: tuple[str, ...] = ()) -> None:
        rules = EvictionRules(self.facts, self.gangs, told, gang_size=lambda _: group_size)
        self.half_left.begin(uids, rules, preemptor, "why")

    def due(self, *preemptors: str, after: float = 0.0) -> list[str]:
        """Return who is to be evicted so many seconds later."""
        self.now += after
        return [pod.uid for rest in self.half_left.due(preemptors) for pod in rest]


def test_those_that_stay_are_due_until_they_leave() -> None:
    clock = Clock("a", "b", "c", size=3)
    clock.begin("a", "b", "c")
    clock.half_left.was_evicted("a")
    assert sorted(clock.due()) == ["b", "c"]
    clock.half_left.was_evicted("b")
    assert clock.half_left.under_way() == ["a", "b"]
    assert clock.due() == ["c"]
    clock.goes("a")
    clock.facts["b"] = EvictionFacts("default", "b", gang=GANG, gang_size=3, leaves_at=1.0)
    clock.goes("c")
    assert clock.due() == []
    assert len(clock.half_left) == 0


def test_an_eviction_that_no_watch_shows_is_asked_for_again() -> None:
    clock = Clock("a", "b", size=2)
    clock.begin("a", "b")
    clock.half_left.was_evicted("a")
    clock.goes("a")
    clock.half_left.was_evicted("b")
    assert clock.due(after=59) == []
    assert clock.due(after=2) == ["b"]


def test_a_gang_of_which_nobody_has_left_is_forgotten() -> None:
    clock = Clock("a", "b", size=2)
    clock.begin("a", "b")
    clock.half_left.was_refused("a", perhaps_evicted=False)
    assert clock.due(after=RETRY_S) == []
    assert len(clock.half_left) == 0


def test_whose_answer_was_lost_tells_by_the_next_one() -> None:
    for refused in (True, False):
        clock = Clock("a", "b", "c", size=3)
        clock.begin("a", "b", "c")
        clock.half_left.was_refused("b", perhaps_evicted=True)
        assert clock.due(after=RETRY_S) == ["b"], "the others stay until it is known"
        if refused:
            clock.half_left.was_refused("b", perhaps_evicted=False)
            assert clock.due(after=RETRY_S) == []
            assert len(clock.half_left) == 0
        else:
            clock.half_left.was_evicted("b")
            assert sorted(clock.due()) == ["a", "c"]


def test_one_refusal_pauses_the_gang_and_the_others_come_first_then() -> None:
    clock = Clock("a", "b", "c", "d", size=4)
    clock.begin("a", "b", "c", "d")
    clock.half_left.was_evicted("a")
    (first, second, third) = clock.due()
    clock.half_left.was_refused(first, perhaps_evicted=False)
    assert clock.due(after=RETRY_S - 1) == []
    assert clock.due(after=1) == [second, third, first]


def test_a_gang_that_is_whole_again_is_left_alone() -> None:
    clock = Clock("a", "b", "c", size=2)
    clock.begin("a", "b", "c")
    clock.half_left.was_evicted("a")
    assert clock.due() == [], "two of three are enough"
    clock = Clock("a", "b", "c", size=3)
    clock.begin("a", "b", "c")
    clock.half_left.was_evicted("a")
    assert clock.due() != []
    clock.comes("new")
    assert clock.due() == []
    assert len(clock.half_left) == 0


@pytest.mark.parametrize(("size", "rest"), [(0, ["b", "c"]), (3, ["b", "c"]), (2, [])])
def test_a_pod_group_says_how_many_make_it_whole(size: int, rest: list[str]) -> None:
    clock = Clock("a", "b", "c", gang=GangName("default", "g", True))
    clock.begin("a", "b", "c", group_size=size)
    clock.half_left.was_evicted("a")
    assert sorted(clock.due()) == rest


def test_pods_that_leave_alone_are_not_remembered() -> None:
    clock = Clock("a", "b", "c", size=2)
    clock.begin("a")
    assert len(clock.half_left) == 0
    clock.facts["single"] = EvictionFacts("default", "single")
    clock.begin("single")
    assert len(clock.half_left) == 0


def test_nothing_is_due_while_the_preemptor_has_them_evicted() -> None:
    clock = Clock("a", "b", size=2)
    clock.begin("a", "b", preemptor="p")
    clock.half_left.was_evicted("a")
    clock.goes("a")
    assert clock.due("p", after=2 * LASTS_S) == []
    assert clock.due(after=LASTS_S) == ["b"], "the time counts from when it does so no more"


def test_it_ends() -> None:
    clock = Clock("a", "b", size=2)
    clock.begin("a", "b")
    clock.half_left.was_evicted("a")
    clock.goes("a")
    assert clock.due(after=LASTS_S) == ["b"]
    assert clock.due(after=1) == []
    assert len(clock.half_left) == 0


def test_the_size_stands_when_the_rest_is_chosen_anew() -> None:
    clock = Clock("a", "b", "c", size=3)
    clock.begin("a", "b", "c")
    clock.half_left.was_evicted("a")
    clock.goes("a")
    clock.begin("b", "c")
    assert sorted(clock.due()) == ["b", "c"]


def test_a_pod_that_was_told_to_leave_before_is_not_missed() -> None:
    clock = Clock("a", "b", "c", size=3)
    clock.facts["c"] = EvictionFacts("default", "c", gang=GANG, gang_size=3, leaves_at=1.0)
    clock.begin("a", "b")
    clock.half_left.was_evicted("a")
    assert clock.due() == ["b"]


def test_a_pod_that_was_told_to_leave_and_does_not_leaves_with_the_others() -> None:
    """It was let go alone before, and the answer about it was lost, say."""
    clock = Clock("a", "b", "c", size=2)
    clock.begin("b", "c", told=("a",))
    for uid in ("b", "c"):
        clock.half_left.was_evicted(uid)
        clock.goes(uid)
    assert clock.due() == []
    assert clock.due(after=61) == ["a"]


def test_a_pod_that_another_preemptor_has_leave_does_not_make_the_gang_whole() -> None:
    clock = Clock("a", "b", "c", size=2)
    clock.begin("b", "c", told=("a",))
    clock.half_left.was_evicted("c")
    clock.goes("c")
    clock.now += 61
    found = clock.half_left.due((), {"a"})
    assert [pod.uid for pod in found[0]] == ["b", "a"]


def test_nothing_is_forgotten_while_one_of_two_preemptors_has_them_evicted() -> None:
    clock = Clock("a", "b", size=2)
    clock.begin("a", "b", preemptor="p")
    clock.begin("a", "b", preemptor="q")
    assert clock.due("p") == []
    clock.half_left.was_evicted("a")
    assert clock.due() == ["b"]
