"""A round of comparing: what follows on what the kubelet lists, and when nothing does (B1)."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import PodStatus
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.differences import Complain, Correct, Correction
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.reconciler import LASTS_S, PodsListed, Reconciliation
from tests.unit.node.agent.test_given_twice import known, listed, node

pytestmark = pytest.mark.requirement("B1")

IDS = ("g0-00000", "g0-00001")


def event(listing: Listing, *, now: float = 0.0, started: frozenset[str] = frozenset()) -> PodsListed:
    return PodsListed(listing, epoch=1.0, settled=True, started=started, synced=True, now=now, now_ns=9)


def admitted() -> AllocationState:
    """Return the state of a node that has a pod with devices."""
    state = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
    DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, IDS)
    return state


def as_written(state: AllocationState, found: list[Correction]) -> None:
    """Let the API server have taken what is to be corrected."""
    for each in found:
        if isinstance(each, Correct):
            annotations = {key: value for key, value in each.annotations.items() if value is not None}
            meta = msgspec.structs.replace(each.pod.pod.metadata, annotations=annotations)
            pod = known_pod(msgspec.structs.replace(each.pod.pod, metadata=meta), state.configuration)
            state.pods[pod.key] = pod


def test_what_was_found_right_is_not_gone_through_again() -> None:
    state, shown = admitted(), listed(GPU_MEMORY, a=IDS)
    comparison = Reconciliation(state)
    found = comparison.listed(event(shown))
    assert found is not None
    assert [type(each) for each in found] == [Correct]
    as_written(state, found)
    assert comparison.has_new_devices()
    comparison.finish()
    assert comparison.listed(event(shown)) == []
    assert not comparison.has_new_devices()
    comparison.finish()
    assert comparison.listed(event(shown)) is None
    assert comparison.listed(event(listed(GPU_MEMORY, a=()))) is not None


def test_what_could_not_be_executed_is_decided_again() -> None:
    state, shown = admitted(), listed(GPU_MEMORY, a=IDS)
    comparison = Reconciliation(state)
    as_written(state, comparison.listed(event(shown)) or [])
    for _ in range(2):
        comparison.failed()
        assert comparison.listed(event(shown)) is not None
        assert comparison.has_new_devices()
        comparison.finish()


def test_time_is_shared_anew_where_there_is_news() -> None:
    state = admitted()
    comparison = Reconciliation(state)
    assert comparison.has_new_shares(mine=True)
    assert not comparison.has_new_shares(mine=True)
    assert comparison.has_new_shares(mine=False), "another agent has the node"


def test_a_complaint_is_told_once_it_lasts() -> None:
    pod = known("a", GPU_MEMORY, 2)
    running = known_pod(msgspec.structs.replace(pod.pod, status=PodStatus(phase="Running")), Configuration())
    comparison, bare = Reconciliation(node(Mode.CGPU, running)), listed(GPU_MEMORY, a=())
    assert comparison.listed(event(bare)) == []
    comparison.finish()
    assert comparison.listed(event(bare, now=LASTS_S - 1)) == []
    comparison.finish()
    told = comparison.listed(event(bare, now=LASTS_S)) or []
    assert [each.reason for each in told if isinstance(each, Complain)] == ["GpuMissing"]
