"""Who was refused is not chosen for a while, each time for longer, and is forgotten in the end."""

import pytest

from gputile.controlplane.refused_evictions import FIRST_PAUSE_S, LONGEST_PAUSE_S, RefusedEvictions
from gputile.kube.errors import AnswerLost, ApiError, KubeError, ServerError, TooManyRequests, Unauthorized

pytestmark = pytest.mark.requirement("B5")

BUDGET = TooManyRequests(429, "TooManyRequests", "the budget does not allow it")


class Clock:
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
    clock, pauses = Clock(), []
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
    clock = Clock()
    clock.evictions.refused("a", error)
    assert bool(clock.evictions.among(["a"])) is counts


@pytest.mark.parametrize("jump", [-500.0, 10_000.0])
def test_a_clock_that_jumps_ends_pauses(jump: float) -> None:
    clock = Clock()
    clock.evictions.refused("a", BUDGET)
    clock.now += jump
    assert clock.evictions.among(["a"]) == []


def test_no_more_is_remembered_than_pods_that_are_bound() -> None:
    clock = Clock()
    for uid in ("a", "b", "gone"):
        clock.evictions.refused(uid, BUDGET)
    clock.bound.clear()
    clock.evictions.refused("c", BUDGET)
    assert len(clock.evictions) == 1


def test_who_may_be_refused_is_asked_first() -> None:
    clock = Clock()
    clock.evictions.refused("b", BUDGET)
    clock.now += FIRST_PAUSE_S + 1
    assert clock.evictions.first(["a", "b"]) == ["b", "a"]
