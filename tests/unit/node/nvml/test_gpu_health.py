"""GPUs leave when they are ill, and come back when they are well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.nvml.gpu_health import (
    APPLICATION_XIDS,
    FIRST_QUIET_S,
    FORGIVEN_AFTER_S,
    GOOD_UNTIL_HEALTHY,
    LONGEST_QUIET_S,
    SUSPICIONS_UNTIL_UNHEALTHY,
    Examined,
    Health,
    Sign,
    XidSeen,
    initial_health,
)

A, B = "GPU-a", "GPU-b"
GOOD = Examined(A)
LOST = Examined(A, "lost")
SLOW = Examined(A, "slow", suspected=True)
CRITICAL = XidSeen(A, 48)


def run(*steps: tuple[float, Sign], health: Health | None = None) -> Health:
    health = health or Health()
    for now_s, sign in steps:
        health = health.after([sign], now_s)
    return health


def good_from(start_s: float, times: int, every_s: float = 10.0) -> list[tuple[float, Sign]]:
    return [(start_s + i * every_s, GOOD) for i in range(times)]


@pytest.mark.parametrize("code", sorted(APPLICATION_XIDS))
def test_an_applications_xid_leaves_no_trace(code: int) -> None:
    assert run((0, XidSeen(A, code))) == Health()


@pytest.mark.parametrize("sign", [CRITICAL, XidSeen(A, 79), LOST])
def test_a_critical_sign_takes_the_gpu_away_at_once(sign: Sign) -> None:
    health = run((0, sign))
    assert not health.healthy(A)
    assert health.healthy(B)
    assert list(health.reasons) == [A]


def test_doubts_count_only_in_a_row() -> None:
    assert run((0, SLOW), (10, GOOD), (20, SLOW)).healthy(A)
    assert not run(*[(10.0 * i, SLOW) for i in range(SUSPICIONS_UNTIL_UNHEALTHY)]).healthy(A)


def test_it_returns_after_quiet_and_good_examinations() -> None:
    health = run((0, CRITICAL), *good_from(FIRST_QUIET_S, GOOD_UNTIL_HEALTHY - 1, every_s=1))
    assert not health.healthy(A)
    assert run((FIRST_QUIET_S + 5, GOOD), health=health).healthy(A)


def quiet_needed(health: Health, start_s: float) -> float:
    """Return the seconds of good examinations until the GPU is back."""
    now_s = start_s
    while not health.healthy(A):
        now_s += 1
        health = health.after([GOOD], now_s)
    return now_s - start_s


def test_each_relapse_doubles_the_quiet_up_to_an_hour_and_a_good_time_forgives() -> None:
    health, now_s, waits = Health(), 0.0, []
    for _ in range(9):
        health = health.after([CRITICAL], now_s)
        wait = quiet_needed(health, now_s)
        waits.append(wait)
        for i in range(int(wait)):
            health = health.after([GOOD], now_s + i + 1)
        now_s += wait + 10
    assert waits == [min(FIRST_QUIET_S * 2**i, LONGEST_QUIET_S) for i in range(9)]
    relapse_s = now_s + FORGIVEN_AFTER_S
    assert quiet_needed(health.after([CRITICAL], relapse_s), relapse_s) == FIRST_QUIET_S


def test_what_was_published_as_unhealthy_has_to_prove_itself() -> None:
    health = initial_health([A], 100)
    assert not health.healthy(A)
    assert run(*good_from(101, 10), health=health).healthy(A)


def test_what_left_the_machine_is_forgotten() -> None:
    assert run((0, CRITICAL)).without([A]) == Health()


SIGNS = st.one_of(
    st.builds(XidSeen, st.sampled_from([A, B]), st.sampled_from([13, 31, 48, 63, 74, 79, 94, 109, 119])),
    st.builds(Examined, st.sampled_from([A, B]), st.sampled_from([None, None, None, "lost"]), st.booleans()),
)
HISTORIES = st.lists(st.tuples(st.floats(0, 200), SIGNS), max_size=60)


def played(history: list[tuple[float, Sign]]) -> tuple[Health, float]:
    health, now_s = Health(), 0.0
    for pause_s, sign in history:
        now_s += pause_s
        health = health.after([sign], now_s)
    return health, now_s


def critical(sign: Sign) -> bool:
    if isinstance(sign, XidSeen):
        return sign.code not in APPLICATION_XIDS
    return sign.fault is not None and not sign.suspected


@given(HISTORIES)
def test_nobody_is_healthy_within_the_quiet_after_a_critical_sign(history: list[tuple[float, Sign]]) -> None:
    health, now_s, last = Health(), 0.0, {}
    for pause_s, sign in history:
        now_s += pause_s
        health = health.after([sign], now_s)
        if critical(sign):
            last[sign.uuid] = now_s
        for uuid, at_s in last.items():
            if now_s - at_s < FIRST_QUIET_S:
                assert not health.healthy(uuid)


@given(HISTORIES)
def test_a_gpu_that_is_well_for_long_enough_is_trusted_again(history: list[tuple[float, Sign]]) -> None:
    health, now_s = played(history)
    for i in range(GOOD_UNTIL_HEALTHY + 1):
        health = health.after([Examined(A), Examined(B)], now_s + LONGEST_QUIET_S + i)
    assert health.reasons == {}


@given(HISTORIES)
def test_gpus_do_not_affect_each_other(history: list[tuple[float, Sign]]) -> None:
    together, _ = played(history)
    for uuid in (A, B):
        now_s, alone = 0.0, Health()
        for pause_s, sign in history:
            now_s += pause_s
            if sign.uuid == uuid:
                alone = alone.after([sign], now_s)
        assert together.conditions.get(uuid) == alone.conditions.get(uuid)
