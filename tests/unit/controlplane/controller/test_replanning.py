"""A plan is begun, or given anew, never both: whoever comes second fails, at any lag, wherever writes fail.

The cluster is that of the stateful test; here it goes the ways that once left a gang running in part.
"""

import pytest
from msgspec.structs import replace

from gputile.api.core import Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import has_gang_gate
from gputile.kube.errors import Forbidden, Invalid
from tests.stateful.test_gangs import LONGEST_SECONDS, Gangs, bound_of

pytestmark = pytest.mark.requirement("M13")

FOUR = [f"g1-{i}" for i in range(4)]


def planned(units: int = 3) -> Gangs:
    """A gang of four with all places and no gates, and an extender that has heard of it."""
    machine = Gangs()
    machine.a_gang_comes(4, units, 0, 0)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 2)
    machine.the_controller_hears(10_000)
    machine.the_extender_hears(10_000)
    assert not any(has_gang_gate(each) for each in machine.members())
    return machine


@pytest.mark.requirement("M13")
def test_a_404_says_that_a_pod_is_gone() -> None:
    """The watch is behind."""
    machine = planned(units=4)
    machine.a_gpu_fails_or_recovers("b", [1])
    for uid in FOUR:
        machine.server.delete(uid)
    machine.the_controller_acts([], 2)
    assert not [booking.key for booking in machine.view.ledger.bookings()]
    machine.everything_settles()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("labels", [{}, {GANG_NAME_LABEL: "g1", GANG_SIZE_LABEL: "many"}])
def test_a_pod_with_a_reservation_whose_labels_name_no_gang_any_more(number: int, labels: dict[str, str]) -> None:
    """Nobody fixes labels once the gate is gone: what was reserved counts until it ends, and leaves nothing behind."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 2)
    changed = machine.server.pods[f"g1-{number}"]
    machine.server.store(replace(changed, metadata=replace(changed.metadata, labels=labels)))
    machine.the_controller_hears(10_000)
    predicates = machine.view.placement.predicates
    machine.time_passes(LONGEST_SECONDS)
    machine.the_controller_acts([], 1)
    assert not predicates.remove(changed.metadata.uid), "its reservation has ended"
    machine.server.delete(changed.metadata.uid)
    machine.the_controller_hears(10_000)
    assert not machine.view.reservation_end(changed.metadata.uid)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("error", [Invalid, Forbidden])
def test_a_gang_of_which_a_pod_cannot_be_written_keeps_no_gpus(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[Invalid | Forbidden]
) -> None:
    """Its annotations are as long as they may be, or a policy forbids it: the others would keep theirs for ever."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    reserve, writes, refused = machine.server.reserve, 0, True

    async def refusing(asked: Pod, text: str | None, nominated: str | None) -> Pod:
        nonlocal writes
        writes += 1
        if refused and text is not None and asked.metadata.uid == f"g1-{number}":
            raise error(422, "Invalid", "metadata.annotations: Too long")
        return await reserve(asked, text, nominated)

    monkeypatch.setattr(machine.server, "reserve", refusing)
    for _ in range(100):
        machine.the_controller_hears(10_000)
        machine.the_controller_acts(["done"], 1)
    assert writes <= 5, "what was refused is not tried again and again"
    for _ in range(20):
        machine.time_passes(15)
        for _ in range(2):
            machine.the_controller_hears(10_000)
            machine.the_controller_acts(["done"], 1)
    assert not any(reservation_of(each) for each in machine.members())
    machine.pods_come_alone_and_are_bound_at_once(4, 1)
    refused = False
    machine.time_passes(61)
    machine.everything_settles()
    assert len(bound_of(machine)) == 4
