"""How long gangs are passed, and how long GPUs are kept for them in vain."""

import pytest

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.controlplane.controller.gang_queue import GangPatience
from gputile.core.devices.gang_membership import GangName

pytestmark = pytest.mark.requirement("M13", "B5")

SECOND = 10**9
START = 1_000_000
PATIENCE, KEEP = 100, 300
GANG = GangName("default", "g", False)


def patience(*kept: tuple[int, int]) -> GangPatience:
    """A gang for which GPUs are kept in vain in these spans of seconds since the start, noted every ten seconds."""
    found = GangPatience(GangConfiguration(patience_seconds=PATIENCE, keep_seconds=KEEP))
    for first, last in kept:
        for second in range(first, last, 10):
            found.begin({GANG}, (START + second) * SECOND)
            found.record_unused_reservation(GANG, 0)
        found.begin({GANG}, (START + last) * SECOND)
    return found


@pytest.mark.parametrize(
    ("kept", "at", "rests"),
    [
        ([], 0, False),
        ([(0, 290)], 290, False),
        ([(0, 300)], 300, True),
        ([(0, 150), (160, 320)], 320, False),
        ([(0, 300)], 599, True),
        ([(0, 300)], 600, False),
        ([(0, 300)], 10, False),
    ],
    ids=["never", "not yet", "long enough", "with a pause", "as long again", "after that", "clock set back"],
)
def test_a_gang_rests_for_as_long_as_gpus_were_kept_for_it_in_vain(
    kept: list[tuple[int, int]], at: int, rests: bool
) -> None:
    found = patience(*kept)
    found.begin({GANG}, (START + at) * SECOND)
    assert found.is_paused(GANG) is rests


@pytest.mark.parametrize(("kept", "waited", "has"), [([], 100, False), ([], 101, True), ([(0, 300)], 301, False)])
def test_a_gang_waits_before_gpus_are_kept_for_it(kept: list[tuple[int, int]], waited: int, has: bool) -> None:
    found = patience(*kept)
    found.begin({GANG}, (START + waited) * SECOND)
    assert found.has_waited(GANG, START) is has


def test_a_new_leader_goes_on_with_the_time_that_the_reservations_tell() -> None:
    found = patience()
    found.begin({GANG}, START * SECOND)
    found.record_unused_reservation(GANG, (START - KEEP + 10) * SECOND)
    for second, rests in ((5, False), (10, True), (9 + KEEP, True), (10 + KEEP, False)):
        found.begin({GANG}, (START + second) * SECOND)
        assert found.is_paused(GANG) is rests
        if not rests:
            found.record_unused_reservation(GANG, (START - KEEP + 10) * SECOND)
    found.begin({GANG}, (START + 20 + KEEP) * SECOND)
    assert not found.is_paused(GANG), "what was before a rest is not counted again"
