"""A plan is begun, or given anew, never both: whoever comes second fails, at any lag, wherever writes fail.

The cluster is that of the stateful test; here it goes the ways that once left a gang running in part.
"""

import pytest
from msgspec.structs import replace

from gputile.api.core import Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, HANDOVER_ANNOTATION
from gputile.core.devices.gang_membership import gated
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.events import NodeApplied
from gputile.kube.errors import ConnectionFailed, Forbidden, Invalid
from gputile.kube.objects import Applied
from tests.fakes.coroutines import at_once
from tests.stateful.gangmodel import NAMES, SECOND
from tests.stateful.test_gangs import HOLD_SECONDS, LONGEST_SECONDS, Gangs, bound_of

pytestmark = pytest.mark.requirement("M13")

FOUR = [f"g1-{i}" for i in range(4)]
RENEWAL = HOLD_SECONDS * 4 // 5  # so late the places of a plan are given anew


def planned(units: int = 3) -> Gangs:
    """A gang of four with all places and no gates, and an extender that has heard of it."""
    machine = Gangs()
    machine.a_gang_comes(4, units, 0, 0)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 2)
    machine.the_controller_hears(10_000)
    machine.the_extender_hears(10_000)
    assert not any(gated(each) for each in machine.members())
    return machine


def plans_of(machine: Gangs) -> dict[str, str]:
    return {uid: hold.plan for uid in FOUR if (hold := reservation_of(machine.server.pods[uid])) is not None}


def late_members_come(machine: Gangs, count: int) -> None:
    like = machine.server.pods["g1-0"]
    for i in range(count):
        machine.create(f"g1-late{i}", 2, dict(like.metadata.labels))


@pytest.mark.parametrize("late", [0, 2])
def test_an_extender_that_has_not_heard_of_the_new_plan_begins_neither(late: int) -> None:
    machine = planned(units=2)
    late_members_come(machine, late)
    machine.time_passes(RENEWAL)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 1)
    assert set(plans_of(machine).values()) == {"g1/2"}
    assert not any(machine.schedule(uid) for uid in FOUR), "the API server has another plan's places on the pods"
    machine.everything_settles()
    assert bound_of(machine) >= set(FOUR)
    machine.teardown()


@pytest.mark.parametrize("fate", ["unreachable", "never arrived", "late", "deposed"])
def test_where_the_first_pod_keeps_its_place_so_do_all_others(fate: str) -> None:
    """The extender has not heard of anything, begins the old plan, and can end it."""
    machine = planned()
    machine.time_passes(RENEWAL)
    machine.the_controller_acts(["deposed", "crash"] if fate == "deposed" else [fate], 1)
    if fate != "deposed":
        assert set(plans_of(machine).values()) == {"g1/1"}
        assert all(machine.schedule(uid) for uid in FOUR)
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)
    machine.teardown()


@pytest.mark.parametrize("executed", range(1, 5))
@pytest.mark.parametrize("fate", ["unreachable", "answer lost", "never arrived", "late", "cut off", "crash"])
def test_a_plan_that_is_given_anew_in_part_starts_nobody(executed: int, fate: str) -> None:
    machine = planned()
    machine.time_passes(RENEWAL)
    machine.the_controller_acts(["done"] * executed + [fate], 1)
    begun = [uid for uid in FOUR if machine.schedule(uid)]
    assert not begun, "the first pod has a place in another plan"
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)
    machine.teardown()


def test_a_place_that_is_lost_after_the_start_is_found_anew() -> None:
    """What has started runs by the plan that its pods carry: the others follow, and what was lost is planned anew."""
    machine = planned()
    assert machine.schedule("g1-0")
    machine.a_gpu_fails_or_recovers("a", [1])
    machine.everything_settles()
    assert bound_of(machine) == {"g1-0", "g1-2", "g1-3"}
    machine.a_gpu_fails_or_recovers("a", [])
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)


@pytest.mark.requirement("M13")
def test_a_404_says_that_a_pod_is_gone_without_a_second_question() -> None:
    """The API server cannot be read after it has answered 404 to the write itself."""
    machine = planned(units=4)
    machine.a_gpu_fails_or_recovers("b", [1])
    for uid in FOUR:
        machine.server.delete(uid)

    async def unreadable(namespace: str, name: str) -> Pod | None:
        raise ConnectionFailed("no connection")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.server, "pod", unreadable)
        machine.the_controller_acts([], 2)
    assert not [booking.key for booking in machine.view.ledger.bookings()]
    machine.everything_settles()


def test_places_of_a_plan_that_has_begun_are_prolonged_and_not_given_anew() -> None:
    """So that of what has begun, only those wait whose own place is lost."""
    machine = planned(units=4)
    assert machine.schedule("g1-0")
    machine.time_passes(RENEWAL)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 1)
    assert set(plans_of(machine).values()) == {"g1/1"}
    ends = {hold.expires_ns for uid in FOUR[1:] if (hold := reservation_of(machine.server.pods[uid])) is not None}
    assert ends == {machine.now_ns + HOLD_SECONDS * SECOND}
    machine.time_passes(RENEWAL)
    machine.a_gpu_fails_or_recovers("b", [1])
    machine.everything_settles()
    assert bound_of(machine) == {"g1-0", "g1-1", "g1-2"}
    machine.a_gpu_fails_or_recovers("b", [])
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)


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


def test_a_node_that_is_closed_for_a_moment_keeps_the_places_of_a_plan_that_has_begun() -> None:
    """Its agent is exchanged. If its GPUs were given up, others could take them, and the gang would run in part."""
    machine = planned(units=4)
    (first,) = [uid for uid in FOUR if (hold := reservation_of(machine.server.pods[uid])) is not None and hold.first]
    assert machine.schedule(first)
    (other,) = set(NAMES) - {machine.server.pods[first].spec.node_name}
    opened = machine.server.nodes[other]
    annotations = {**opened.metadata.annotations, HANDOVER_ANNOTATION: "1"}
    for there in (replace(opened, metadata=replace(opened.metadata, annotations=annotations)), opened):
        machine.extender.apply(NodeApplied(there))
        at_once(machine.view.node_event(Applied(there)))
        machine.pods_come_alone_and_are_bound_at_once(4, 1)
        machine.the_controller_hears(10_000)
        machine.the_controller_acts([], 1)
        machine.the_extender_hears(10_000)
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)
    machine.teardown()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("error", [Invalid, Forbidden])
def test_a_gang_of_which_a_pod_cannot_be_written_keeps_no_gpus(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[Invalid | Forbidden]
) -> None:
    """Its annotations are as long as they may be, or a policy forbids it: the others would keep theirs for ever."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    reserve, writes, refused = machine.server.reserve, 0, True

    async def refusing(asked: Pod, text: str | None) -> Pod:
        nonlocal writes
        writes += 1
        if refused and text is not None and asked.metadata.uid == f"g1-{number}":
            raise error(422, "Invalid", "metadata.annotations: Too long")
        return await reserve(asked, text)

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


def test_a_gang_that_found_its_nodes_closed_is_tried_again_when_they_open() -> None:
    """Their agents were exchanged when it was planned first; nothing else changes afterwards."""
    machine = Gangs()
    machine.a_gang_comes(4, 4, 0, 0)
    for closed in (True, False):
        for name in NAMES:
            there = machine.server.nodes[name]
            annotations = {**there.metadata.annotations, **({HANDOVER_ANNOTATION: "1"} if closed else {})}
            there = replace(there, metadata=replace(there.metadata, annotations=annotations))
            machine.extender.apply(NodeApplied(there))
            at_once(machine.view.node_event(Applied(there)))
        machine.the_controller_hears(10_000)
        machine.the_controller_acts([], 1)
    machine.everything_settles()
    assert bound_of(machine) == set(FOUR)
