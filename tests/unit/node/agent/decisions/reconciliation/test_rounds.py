"""A round of comparing: what follows on what the kubelet lists, and when nothing does (B1)."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import PodStatus
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.instructions import (
    AdvertiseDevices,
    Instruction,
    RemoveOthers,
    SaveCheckpoint,
    ShareTime,
)
from gputile.node.agent.decisions.reconciliation.differences import Complain, Correct, Correction
from gputile.node.agent.decisions.reconciliation.rounds import LASTS_S, PodsListed, Reconciliation
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import Listing
from gputile.node.agent.state.known_pods import known_pod
from tests.unit.node.agent.decisions.test_given_twice import known, listed, node

pytestmark = pytest.mark.requirement("B1")

IDS = ("g0-00000", "g0-00001")


def event(listing: Listing, *, now: float = 0.0, started: frozenset[str] = frozenset()) -> PodsListed:
    return PodsListed(listing, epoch=1.0, settled=True, started=started, synced=True, now=now, now_ns=9)


def admitted() -> AllocationState:
    """Return the state of a node that has a pod with devices."""
    state = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
    DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, IDS)
    return state


def kinds(instructions: list[Instruction]) -> list[type]:
    return [type(each) for each in instructions]


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
    assert kinds(comparison.corrected(mine=True)) == [ShareTime, SaveCheckpoint, AdvertiseDevices]
    assert comparison.tidied(synced=True) == [RemoveOthers({"uid-a-main"}, {"uid-a"})]
    assert comparison.listed(event(shown)) == []
    assert comparison.corrected(mine=True) == []
    comparison.tidied(synced=True)
    assert comparison.listed(event(shown)) is None
    assert comparison.listed(event(listed(GPU_MEMORY, a=()))) is not None


def test_what_could_not_be_executed_is_decided_again() -> None:
    state, shown = admitted(), listed(GPU_MEMORY, a=IDS)
    comparison = Reconciliation(state)
    as_written(state, comparison.listed(event(shown)) or [])
    for _ in range(2):
        comparison.failed()
        assert comparison.listed(event(shown)) is not None
        assert kinds(comparison.corrected(mine=True)) == [ShareTime, SaveCheckpoint, AdvertiseDevices]
        comparison.tidied(synced=True)


def test_time_is_shared_anew_where_there_is_news() -> None:
    state = admitted()
    comparison = Reconciliation(state)
    assert comparison.share_time(mine=True) == [ShareTime()]
    assert comparison.share_time(mine=True) == []
    assert comparison.share_time(mine=False) == [ShareTime()], "another agent has the node"


def test_files_of_a_pod_that_is_admitted_while_corrections_are_written_stay() -> None:
    state = admitted()
    comparison = Reconciliation(state)
    comparison.listed(event(listed(GPU_MEMORY, a=IDS)))
    state.pods.clear()
    DeviceAllocator(state, None, 1.0, 2).allocate(GPU_MEMORY, ("g1-00000", "g1-00001"))
    assert SaveCheckpoint() in comparison.corrected(mine=True)
    (done,) = comparison.tidied(synced=True)
    assert isinstance(done, RemoveOthers)
    assert done.directories == state.device_table.directories()
    assert len(done.directories) == 2


def test_a_complaint_is_told_once_it_lasts() -> None:
    pod = known("a", GPU_MEMORY, 2)
    running = known_pod(msgspec.structs.replace(pod.pod, status=PodStatus(phase="Running")), Configuration())
    comparison, bare = Reconciliation(node(Mode.CGPU, running)), listed(GPU_MEMORY, a=())
    assert comparison.listed(event(bare)) == []
    comparison.tidied(synced=True)
    assert comparison.listed(event(bare, now=LASTS_S - 1)) == []
    comparison.tidied(synced=True)
    told = comparison.listed(event(bare, now=LASTS_S)) or []
    assert [each.reason for each in told if isinstance(each, Complain)] == ["GpuMissing"]
