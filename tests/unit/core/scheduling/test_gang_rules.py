"""Which pods of a gang count as started, whatever the clocks of gputile's processes say."""

from collections.abc import Sequence

import msgspec
import pytest

from gputile.api.core import Pod, PodCondition
from gputile.api.well_known import ALLOCATION_ANNOTATION, RESERVATION_ANNOTATION
from gputile.core.devices.allocation import decode_allocation, encode_allocation
from gputile.core.devices.reservation import Reservation, encode_reservation
from gputile.core.scheduling.gang_rules import started
from tests.corebuilders import allocation_text, pod, share

pytestmark = pytest.mark.requirement("M13", "B5")

EARLIER, THEN, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:00:05Z", "2030-01-01T00:01:00Z"
A_YEAR_BEFORE_NS, A_YEAR_AFTER_NS = 1_861_920_000 * 10**9, 1_924_992_000 * 10**9


def waiting(created: str, plan: str = "") -> Pod:
    found = pod("waits", mem=1)
    found.metadata.creation_timestamp = created
    return _planned(found, plan)


def done(bound_at: str, plan: str = "", assumed_ns: int = 0) -> Pod:
    """A pod that succeeded; ``assumed_ns`` is what the extender's clock said when it was bound."""
    found = pod("done", mem=1, node="n", phase="Succeeded")
    allocation = decode_allocation(allocation_text(share("g-0", 1024)))
    found.metadata.annotations[ALLOCATION_ANNOTATION] = encode_allocation(allocation.decided_at(assumed_ns))
    if bound_at:
        found.status.conditions = (PodCondition(type="PodScheduled", status="True", last_transition_time=bound_at),)
    return _planned(found, plan)


def _planned(found: Pod, plan: str) -> Pod:
    if plan:
        found.metadata.annotations[RESERVATION_ANNOTATION] = encode_reservation(Reservation(plan, 2, 2, "n", 0))
    return found


def names(found: Sequence[Pod]) -> list[str]:
    return [each.metadata.name for each in found]


@pytest.mark.parametrize("assumed_ns", [A_YEAR_BEFORE_NS, A_YEAR_AFTER_NS])
def test_a_pod_that_succeeded_counts_for_pods_that_existed_when_it_was_bound(assumed_ns: int) -> None:
    assert names(started([waiting(EARLIER), done(THEN, assumed_ns=assumed_ns)])) == ["done"]
    assert not started([waiting(LATER), done(THEN, assumed_ns=assumed_ns)])


def test_a_pod_that_succeeded_counts_for_pods_of_its_plan_where_clocks_of_api_servers_differ() -> None:
    assert names(started([waiting(LATER, plan="1"), done(THEN, plan="1")])) == ["done"]
    assert not started([waiting(LATER, plan="2"), done(THEN, plan="1")])


def test_a_pod_of_which_nobody_says_when_it_was_bound_counts_for_none() -> None:
    assert not started([waiting(EARLIER), done("")])


def test_of_the_conditions_the_one_of_the_binding_is_kept() -> None:
    """Objects of tens of thousands of pods stay in memory."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": LATER, "lastProbeTime": None}
    told = {"status": {"phase": "Running", "conditions": [ready, {**ready, "type": "PodScheduled"}]}}
    found = msgspec.json.decode(msgspec.json.encode(told), type=Pod)
    assert found.bound_at == LATER
    assert len(found.status.conditions) == 1
    told["status"]["conditions"] = [{**ready, "type": "PodScheduled", "status": "False"}]
    assert not msgspec.json.decode(msgspec.json.encode(told), type=Pod).bound_at
