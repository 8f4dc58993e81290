"""Victims of kube-scheduler: enough, of lower priority, and no more than need to leave; what pods say of it."""

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Container, ContainerPort, Pod, PodCondition, PodResourceClaim
from gputile.api.disks import ClaimSource, DiskVolume
from gputile.api.well_known import DELETION_COST_ANNOTATION
from gputile.core.devices.allocation import Allocation
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Assumed
from gputile.core.scheduling.eviction_rules import DEFAULT_GRACE_S, MOST_GRACE_S, EvictionFacts, eviction_facts
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.scheduler_victims import Interchange, victims
from tests.conftest import examples
from tests.fakes.corebuilders import GIB15, book, gpu_node, ledger_of, pod, request_of, share

GIB = 1024


def placer_with(pods: list[tuple[int, int, int]]) -> PlacementEngine:
    """A node of two GPUs with pods (GPU, GiB, priority) of uid "0", "1" and so on."""
    ledger = ledger_of(gpu_node(mode="cgpu", sizes=[15 * GIB] * 2))
    for i, (gpu, gib, priority) in enumerate(pods):
        allocation = Allocation((share(f"GPU-n-{gpu}", gib * GIB),), {}, 1024)
        ledger.apply(Assumed(Booking(str(i), "ns", str(i), "n", "ns", allocation, priority=priority, assumed_at=0.0)))
    return PlacementEngine(ledger)


def by_looking_at_the_node_each_time(
    engine: PlacementEngine, node: str, asking: Pod, proposed: set[str], priority: int
) -> frozenset[str] | None:
    """What ``victims`` says, step by step on the node's whole state: slow, and easy to read."""
    request = request_of(asking)

    def fits(gone: set[str]) -> bool:
        return isinstance(engine.decide(request, node, 0, frozenset(gone)), Decision)

    leaving = set(proposed)
    if fits(leaving):
        return frozenset(leaving)
    staying = {b.uid: b for b in engine.ledger.on_node(node) if not b.reserved and b.uid not in leaving}
    added: list[str] = []
    while not fits(leaving | set(added)):
        held: dict[str, int] = {}
        for booking in staying.values():
            for each in booking.gpus:
                held[each.uuid] = held.get(each.uuid, 0) + each.mib
        lower = [
            (b.priority, min((held[s.uuid] for s in b.gpus), default=0), -sum(s.mib for s in b.gpus), b.uid)
            for b in staying.values()
            if b.priority < priority
        ]
        if not lower:
            return None
        added.append(min(lower)[-1])
        del staying[added[-1]]
    for uid in reversed(added[:-1]):
        if fits(leaving | (set(added) - {uid})):
            added.remove(uid)
    return frozenset(leaving | set(added))


SETS = st.sets(st.integers(0, 4), max_size=3)  # GPUs; 4 is one that the node does not have
HELD = st.lists(
    st.tuples(SETS, st.integers(1, 9), st.integers(0, 3), st.sampled_from("xy"), st.booleans()), max_size=12
)
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
@settings(max_examples=examples(500))
@given(
    HELD,
    st.sampled_from(ASKED),
    st.sampled_from(["cgpu", "share", "core_mem", "default", "topology"]),
    st.sets(st.integers(0, 11).map(str), max_size=3),
    st.sets(st.integers(0, 3), max_size=1),
    st.integers(0, 4),
)
def test_pod_by_pod_and_gpu_by_gpu_say_the_same_b5(
    held: list[tuple[set[int], int, int, str, bool]],
    asked: dict[str, Any],
    mode: str,
    proposed: set[str],
    unhealthy: set[int],
    priority: int,
) -> None:
    ledger = ledger_of(gpu_node(mode=mode, unhealthy=sorted(unhealthy)))
    for i, (gpus, gib, of, team, reserved) in enumerate(held):
        shares = tuple(share(f"GPU-n-{gpu}", gib * GIB, gib * 10) for gpu in sorted(gpus))
        whole = mode in ("default", "topology")
        allocation = Allocation(shares, {}, 1024, whole=whole) if shares else None
        ledger.apply(
            Assumed(
                Booking(str(i), team, str(i), "n", team, allocation, priority=of, assumed_at=0.0, reserved=reserved)
            )
        )
    engine, asking = PlacementEngine(ledger), pod(namespace="x", asks=asked)
    wanted = by_looking_at_the_node_each_time(engine, "n", asking, proposed, priority)
    assert victims(engine, request_of(asking), "n", proposed, priority) == wanted


@pytest.mark.requirement("B5")
@pytest.mark.parametrize("gpus", [1, 8])
def test_the_work_grows_with_the_pods_and_not_with_their_square_b5(gpus: int) -> None:
    """kube-scheduler waits for the answer, and offers a hundred nodes of more than a hundred pods at once."""

    def calls(pods: int) -> int:
        ledger = ledger_of(gpu_node(mode="share", sizes=[GIB15] * 8))
        for i in range(pods):
            book(ledger, f"{i:04}", "n", share(f"GPU-n-{i % 8}", 8 * GIB15 // pods))
        engine, request = PlacementEngine(ledger), request_of(pod(mem=15 * gpus, count=gpus))
        made = 0

        def count(_: FrameType, event: str, __: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            leaving = victims(engine, request, "n", [], 1)
        finally:
            sys.setprofile(None)
        assert leaving is not None
        assert len(leaving) == pods * gpus // 8
        return made

    assert calls(1024) < 10 * calls(128)


def facts(uid: str, **amounts: int) -> tuple[str, EvictionFacts]:
    return uid, EvictionFacts("ns", uid, amounts=amounts)


def preemptor(**spec: Any) -> Pod:
    """A pod of 15 GiB."""
    asking = pod("high", mem=15)
    return msgspec.structs.replace(asking, spec=msgspec.structs.replace(asking.spec, **spec))


@pytest.mark.parametrize(("proposed", "leaving"), [([], {"1"}), (["0"], None)])
def test_a_static_pod_never_leaves_b5(proposed: list[str], leaving: set[str] | None) -> None:
    """Its kubelet starts it again, so its eviction frees nothing; where it is proposed, the node is no candidate."""
    known = {"0": EvictionFacts("ns", "0", static=True), "1": EvictionFacts("ns", "1")}
    asking = preemptor()
    found = victims(
        placer_with([(0, 15, 0), (1, 15, 1)]), request_of(asking), "n", proposed, 2, Interchange(asking, known)
    )
    assert (set(found) if found is not None else None) == leaving


FOUR = [(0, 7, 0), (0, 7, 0), (1, 7, 0), (1, 7, 0)]  # two pods on each of two GPUs


@pytest.mark.requirement("B5")
@pytest.mark.parametrize(
    ("memory", "leaving"),
    [
        ((5, 5, 5, 5), {"0", "1"}),
        ((5, 9, 5, 5), {"0", "1"}),
        ((5, 4, 5, 5), {"0", "1", "2"}),
    ],
    ids=["equal", "one frees more", "it frees less"],
)
def test_of_proposed_pods_on_two_gpus_one_stays_if_another_frees_as_much_b5(
    memory: tuple[int, ...], leaving: set[str]
) -> None:
    """kube-scheduler's two are on two GPUs: three would leave where two are enough."""
    known = dict(facts(str(i), memory=amount) for i, amount in enumerate(memory))
    asking = preemptor()
    found = victims(placer_with(FOUR), request_of(asking), "n", ["0", "2"], 1, Interchange(asking, known))
    assert found is not None
    assert set(found) == leaving


@pytest.mark.requirement("B5")
@pytest.mark.parametrize(
    "spec",
    [
        {"containers": (Container(ports=(ContainerPort(host_port=80),)),)},
        {"resource_claims": (PodResourceClaim(),)},
        {"volumes": (DiskVolume(persistent_volume_claim=ClaimSource()),)},
    ],
)
def test_who_may_be_in_the_way_for_other_reasons_leaves_b5(spec: dict[str, Any]) -> None:
    """A port, a volume or a device may be why kube-scheduler proposes a pod; also what it does not say."""
    request, engine = request_of(preemptor()), placer_with(FOUR)
    known = dict(facts(str(i)) for i in range(4))
    leaving = victims(engine, request, "n", ["0", "2"], 1, Interchange(preemptor(**spec), known))
    assert leaving is not None
    assert leaving >= {"0", "2"}
    in_the_way = eviction_facts(preemptor(**spec))
    assert in_the_way.amounts is None
    leaving = victims(
        engine, request, "n", ["0", "2"], 1, Interchange(preemptor(), known | {"0": in_the_way, "2": in_the_way})
    )
    assert leaving is not None
    assert leaving >= {"0", "2"}


@pytest.mark.requirement("B5")
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 8), st.integers(0, 3)), max_size=8),
    st.integers(1, 15),
    st.sets(st.integers(0, 7), max_size=3),
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=8, max_size=8),
)
def test_what_leaves_is_enough_for_kube_scheduler_too_b5(
    pods: list[tuple[int, int, int]], units: int, chosen: set[int], memory: list[int | None]
) -> None:
    """Never more than without the exchange, never less of a resource than was proposed; pods of None stay proposed."""
    engine, asking = placer_with(pods), pod("high", mem=units)
    proposed = {str(i) for i in chosen if i < len(pods) and pods[i][2] < 2}
    known = {
        str(i): EvictionFacts("ns", str(i), amounts=None if amount is None else {"memory": amount})
        for i, amount in enumerate(memory)
    }
    request = request_of(asking)
    before = victims(engine, request, "n", proposed, 2)
    found = victims(engine, request, "n", proposed, 2, Interchange(asking, known))
    assert (found is None) == (before is None)
    if found is None or before is None:
        return
    assert isinstance(engine.decide(request, "n", 0, found), Decision)
    assert all(pods[int(uid)][2] < 2 for uid in found)
    assert {uid for uid in proposed if memory[int(uid)] is None} <= found
    assert max((pods[int(uid)][2] for uid in found), default=0) <= max((pods[int(uid)][2] for uid in before), default=0)
    assert len(found) >= len(proposed)
    assert sum(memory[int(uid)] or 0 for uid in found) >= sum(memory[int(uid)] or 0 for uid in proposed)
    if {pods[int(uid)][2] for uid in before} <= {0}:
        assert len(found) <= len(before)


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
