"""Victims: enough, of lower priority, and no more than need to leave."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gputile.device.allocation import Allocation
from gputile.ledger.booking import Booking
from gputile.ledger.events import Assumed
from gputile.scheduling.decision import Decision
from gputile.scheduling.placer import Placer
from gputile.scheduling.preemption import victims
from tests.corebuilders import gpu_node, ledger_of, pod, request_of, share

GIB = 1024
held_pods = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 8), st.integers(0, 3)), max_size=6)


def placer_with(pods: list[tuple[int, int, int]]) -> Placer:
    """A node of two cards with pods (card, GiB, priority) of uid "0", "1" and so on."""
    ledger = ledger_of(gpu_node(mode="cgpu", sizes=[15 * GIB] * 2))
    for i, (card, gib, priority) in enumerate(pods):
        allocation = Allocation((share(f"GPU-n-{card}", gib * GIB),), {}, 1024)
        ledger.apply(Assumed(Booking(str(i), "ns", str(i), "n", "ns", allocation, priority=priority, assumed_at=0.0)))
    return Placer(ledger)


@given(held_pods, st.integers(1, 15), st.sets(st.integers(0, 5).map(str), max_size=2))
def test_victims_are_enough_lower_and_none_to_spare_b5(
    pods: list[tuple[int, int, int]], units: int, proposed: set[str]
) -> None:
    placer, request = placer_with(pods), request_of(pod(mem=units))

    def fits(gone: frozenset[str]) -> bool:
        return isinstance(placer.decide(request, "n", 0, gone), Decision)

    before = [booking.uid for booking in placer.ledger.bookings()]
    leaving = victims(placer, request, "n", proposed, 2)
    lower = {str(i) for i, (_, _, priority) in enumerate(pods) if priority < 2}
    if leaving is None:
        assert not any(
            fits(frozenset(some) | proposed) for n in range(len(lower) + 1) for some in combinations(sorted(lower), n)
        )
    else:
        assert proposed <= leaving
        assert leaving - proposed <= lower
        assert fits(leaving)
        assert not any(fits(leaving - {uid}) for uid in leaving - proposed)
    assert [booking.uid for booking in placer.ledger.bookings()] == before


def test_a_card_that_others_leave_is_emptied_before_another_b5() -> None:
    """kube-scheduler counts units of the node: what it proposes may be on two cards, and then one more is enough."""
    placer = placer_with([(0, 7, 0), (0, 7, 0), (1, 7, 0), (1, 7, 0)])
    assert victims(placer, request_of(pod(mem=15)), "n", ["3"], 1) == {"2", "3"}


def test_the_lowest_priorities_leave_first() -> None:
    placer = placer_with([(0, 15, 1), (1, 15, 0)])
    assert victims(placer, request_of(pod(mem=8)), "n", [], 5) == {"1"}
    assert victims(placer, request_of(pod(mem=8)), "n", [], 0) is None
