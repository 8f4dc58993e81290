"""Victims of kube-scheduler: enough, of lower priority, and no more than need to leave; what pods say of it."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import PodCondition
from gputile.api.well_known import DELETION_COST_ANNOTATION
from gputile.core.devices.allocation import Allocation
from gputile.core.ledger.booking import Booking
from gputile.core.scheduling.eviction_rules import DEFAULT_GRACE_S, MOST_GRACE_S, EvictionFacts, eviction_facts
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import completed_victims
from tests.conftest import examples
from tests.fakes.corebuilders import fits_without, gpu_node, ledger_of, pod, request_of, share

GIB = 1024


def placer_with(pods: list[tuple[int, int, int]]) -> PlacementEngine:
    """A node of two GPUs with pods (GPU, GiB, priority) of uid "0", "1" and so on."""
    ledger = ledger_of(gpu_node(mode="cgpu", sizes=[15 * GIB] * 2))
    for i, (gpu, gib, priority) in enumerate(pods):
        allocation = Allocation((share(f"GPU-n-{gpu}", gib * GIB),), {}, 1024)
        ledger.assume(Booking(str(i), "ns", str(i), "n", "ns", allocation, priority=priority))
    return PlacementEngine(ledger)


SETS = st.sets(st.integers(0, 3), min_size=1, max_size=3)  # GPUs
HELD = st.lists(st.tuples(SETS, st.integers(1, 9), st.integers(0, 3), st.sampled_from("xy")), max_size=12)
ASKED: list[dict[str, Any]] = [
    {"mem": 3},
    {"mem": 12},
    {"mem": 24, "count": 3},
    {"mem": 2, "core": 60},
    {"nvidia.com/gpu": 1},
    {"nvidia.com/gpu": 3},
    {"aliyun.com/gpu": 2},
]


@pytest.mark.requirement("B5")
@settings(max_examples=examples(300))
@given(
    HELD,
    st.sampled_from(ASKED),
    st.sampled_from(["cgpu", "share", "core_mem", "default", "topology"]),
    st.sets(st.integers(0, 11).map(str), max_size=3),
    st.sets(st.integers(0, 3), max_size=1),
    st.integers(0, 4),
)
def test_what_leaves_is_what_was_proposed_and_enough_of_lower_priority_b5(
    held: list[tuple[set[int], int, int, str]],
    asked: dict[str, Any],
    mode: str,
    proposed: set[str],
    unhealthy: set[int],
    priority: int,
) -> None:
    ledger = ledger_of(gpu_node(mode=mode, unhealthy=sorted(unhealthy)))
    lower = set(proposed)
    for i, (gpus, gib, of, team) in enumerate(held):
        shares = tuple(share(f"GPU-n-{gpu}", gib * GIB, gib * 10) for gpu in sorted(gpus))
        allocation = Allocation(shares, {}, 1024, whole=mode in ("default", "topology"))
        ledger.assume(Booking(str(i), team, str(i), "n", team, allocation, priority=of, assumed_at=None))
        if of < priority:
            lower.add(str(i))
    engine, asking = PlacementEngine(ledger), pod(namespace="x", asks=asked)
    request = request_of(asking)

    def enough(gone: Collection[str]) -> bool:
        return fits_without(engine.ledger, request, "n", gone)

    found = completed_victims(engine, request, "n", proposed, priority, {})
    assert (found is not None) == enough(lower)
    if found is None:
        return
    assert enough(found)
    assert found <= lower
    assert proposed <= found
    if enough(proposed):
        assert found == proposed
    assert not any(enough(found - {uid}) for uid in found - proposed), "nobody leaves in vain"


@pytest.mark.parametrize(("proposed", "leaving"), [([], {"1"}), (["0"], None)])
def test_a_static_pod_never_leaves_b5(proposed: list[str], leaving: set[str] | None) -> None:
    """Its kubelet starts it again, so its eviction frees nothing; where it is proposed, the node is no candidate."""
    known = {"0": EvictionFacts("ns", "0", static=True), "1": EvictionFacts("ns", "1")}
    engine = placer_with([(0, 15, 0), (1, 15, 1)])
    found = completed_victims(engine, request_of(pod(mem=15)), "n", proposed, 2, known)
    assert (set(found) if found is not None else None) == leaving


@pytest.mark.parametrize(
    ("text", "cost"), [("7", 7), ("-7", -7), ("", 0), ("1e3", 0), ("--1", 0), ("9" * 400, 0), ("9" * 10, 2**31 - 1)]
)
def test_the_cost_is_an_int32_or_0(text: str, cost: int) -> None:
    assert eviction_facts(pod(mem=1, annotations={DELETION_COST_ANNOTATION: text})).cost == cost


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    said = pod(mem=1, annotations={DELETION_COST_ANNOTATION: text})
    said.metadata.creation_timestamp = said.metadata.deletion_timestamp = text
    assert abs(eviction_facts(said).cost) < 2**31


def test_times_are_those_of_the_api_server() -> None:
    bound = pod(mem=1, node="n")
    bound.metadata.creation_timestamp = "1970-01-01T00:00:10Z"
    assert eviction_facts(bound).started_at == 10
    bound.status.conditions = (
        PodCondition(type="PodScheduled", status="True", last_transition_time="1970-01-01T00:01:00Z"),
    )
    bound.metadata.deletion_timestamp = "1970-01-01T00:02:00Z"
    facts = eviction_facts(bound)
    assert (facts.started_at, facts.leaves_at, facts.grace_s) == (60, 120, DEFAULT_GRACE_S)
    bound.spec.termination_grace_period_seconds = 10**9
    assert eviction_facts(bound).grace_s == MOST_GRACE_S + 1
