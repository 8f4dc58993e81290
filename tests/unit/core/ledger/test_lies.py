"""Allocations that can be read and are not true, and machines that are replaced under their pods.

What is known of a pod is what its annotation claims and what its specification asks for. The worst of both counts.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import Allocation, GpuShare, encode_allocation
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from tests.fakes.corebuilders import allocation_text, gpu_node, ledger_of, pod, request_of, share
from tests.stateful.ledgercheck import image

pytestmark = pytest.mark.requirement("B1", "B2")

SIZE = 8 * 1024
MODES = ("cgpu", "core_mem", "share", "mps", "", "topology")
ASKS: list[dict[str, int]] = [
    {"mem": 1},
    {"mem": 4, "count": 2},
    {"mem": 2, "core": 40},
    {"nvidia.com/gpu": 1},
    {"nvidia.com/gpu": 2},
    {"aliyun.com/gpu": 1},
]


def gpus(node: str) -> list[str]:
    return [f"GPU-{node}-{i}" for i in range(3)]


claims = st.builds(
    lambda uuids, amounts, whole, mode, unit: Allocation(
        tuple(share(uuid, *amount) for uuid, amount in zip(uuids, amounts, strict=False)),
        {},
        unit,
        mode=mode,
        whole=whole,
    ),
    st.lists(st.sampled_from([*gpus("n"), "GPU-other-3", "GPU-gone-4"]), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([0, 1, 1024, SIZE, SIZE + 1, 2**24]), st.sampled_from([0, 5, 40, 100])),
        min_size=3,
        max_size=3,
    ),
    st.booleans(),
    st.sampled_from([*MODES, "unheard-of"]),
    st.sampled_from([1, 64, 1024, 2**24]),
)


def ledger_of_two(mode: str) -> Ledger:
    return ledger_of(gpu_node("n", mode=mode, sizes=[SIZE] * 3), gpu_node("other", mode=mode, sizes=[SIZE] * 4))


def bound(asks: dict[str, int], text: str) -> Pod:
    return pod("liar", node="n", annotations={ALLOCATION_ANNOTATION: text}, asks=asks)


def fill(ledger: Ledger) -> dict[str, list[tuple[int, bool]]]:
    """Place pods on the node until nothing fits, and return what others got of each GPU: MiB, and whether whole."""
    engine = PlacementEngine(ledger)
    got: dict[str, list[tuple[int, bool]]] = {}
    for number, asks in enumerate(ask for ask in ({"mem": 1}, {"mem": 1, "core": 5}, *ASKS[3:]) for _ in range(25)):
        asking = pod(f"other{number}", asks=asks)
        request = request_of(asking)
        if not engine.filter(request, ["n"]).feasible:
            continue
        decision = engine.decide(request, "n", 1)
        assert isinstance(decision, Decision)
        booking = decision.booking(asking, request, 0.0)
        assert booking is not None
        ledger.assume(booking)
        for part in booking.gpus:
            got.setdefault(part.uuid, []).append((part.mib, booking.whole))
    return got


def held_at_worst(shape: Shape, claim: Allocation) -> dict[str, int]:
    """Return the MiB that the pod may hold of each GPU it names: what it claims, and all that it asks for beyond."""
    if claim.whole or shape.kind is not RequestKind.SHARED:
        return {part.uuid: max(part.mib, SIZE) for part in claim.gpus}
    missing = max(0, shape.mib * shape.gpus - sum(part.mib for part in claim.gpus))
    return {part.uuid: part.mib + missing for part in claim.gpus}


@given(claim=claims, asks=st.sampled_from(ASKS), mode=st.sampled_from(MODES))
def test_nobody_gets_what_a_pod_claims_or_may_be_on(claim: Allocation, asks: dict[str, int], mode: str) -> None:
    ledger, shape = ledger_of_two(mode), request_of(pod(asks=asks)).shape
    ledger.apply_pod(bound(asks, encode_allocation(claim)))
    named = {part.uuid for part in claim.gpus}
    got = fill(ledger)
    if len(named) < max(shape.gpus, len(claim.gpus)) or not named <= set(gpus("n")):
        assert not got, "the pod could be on any GPU"
        assert [booking.uid for booking in ledger.unplaced("n")] == ["liar"]
        return
    for uuid, held in held_at_worst(shape, claim).items():
        others = got.get(uuid, [])
        assert sum(mib for mib, _ in others) <= max(0, SIZE - held), f"{uuid} is given away twice"
        assert not any(whole for _, whole in others), f"{uuid} is given away whole"


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
)
def test_an_agents_correction_is_booked_as_it_is(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    """Containers may have got other GPUs than the scheduler chose; as long as nothing is missing nothing is added."""
    total = {i: one.count(i) + two.count(i) for i in {*one, *two}}
    shares = tuple(GpuShare(f"GPU-n-{i}", i, count * 1024) for i, count in sorted(total.items()))
    parts = {
        name: tuple(GpuShare(f"GPU-n-{i}", i, part.count(i) * 1024) for i in sorted(set(part)))
        for name, part in (("one", one), ("two", two))
    }
    allocation = Allocation(shares, parts, 1024, mode="cgpu")
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[SIZE] * 7))
    asking = bound({"mem": len(one) + len(two)}, encode_allocation(allocation))
    ledger.apply_pod(asking)
    booking = ledger.booking("liar")
    assert booking is not None
    assert booking.allocation == allocation


GPU_COUNT, UNITS = 2, 8


def machine(serial: str) -> Node:
    """The node ``n`` on a machine whose GPUs' UUIDs have this serial number."""
    made = gpu_node(serial, mode="cgpu", sizes=[UNITS * 1024] * GPU_COUNT)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name="n"))


def bound_before(uid: str, serial: str, gpu: int, units: int) -> Pod:
    text = allocation_text(share(f"GPU-{serial}-{gpu}", units * 1024))
    return pod(uid, node="n", annotations={ALLOCATION_ANNOTATION: text}, asks={"mem": units})


def replace(ledger: Ledger, way: str) -> None:
    if way == "deleted first":
        ledger.remove_node("n")
    if way == "listed anew":
        ledger.replace_nodes([machine("new")])
    else:
        ledger.apply_node(machine("new"))


def fitting(ledger: Ledger) -> int:
    """Return how many pods of one unit the node takes."""
    for number in range(GPU_COUNT * UNITS + 1):
        uid = f"one-more-{number}"
        decided = PlacementEngine(ledger).decide(request_of(pod(uid, asks={"mem": 1})), "n", 1)
        if not isinstance(decided, Decision) or decided.allocation is None:
            return number
        there = {ALLOCATION_ANNOTATION: encode_allocation(decided.allocation)}
        ledger.apply_pod(pod(uid, node="n", annotations=there, asks={"mem": 1}))
    raise AssertionError("more than the node has")


WAYS = st.sampled_from(["deleted first", "under the same object", "listed anew"])


@given(WAYS, st.lists(st.tuples(st.integers(0, GPU_COUNT - 1), st.integers(1, UNITS // 2)), min_size=1, max_size=2))
def test_nothing_is_given_away_while_a_pod_of_the_lost_machine_is_there(way: str, held: list[tuple[int, int]]) -> None:
    """It may be on any of the new GPUs: its kubelet has started it before any agent was there."""
    ledger = ledger_of(machine("old"))
    for number, (gpu, units) in enumerate(held):
        ledger.apply_pod(bound_before(f"p{number}", "old", gpu, units))
    replace(ledger, way)
    for number in range(len(held)):
        assert {booking.uid for booking in ledger.unplaced("n")} == {f"p{left}" for left in range(number, len(held))}
        assert fitting(ledger) == 0
        ledger.remove_pod(f"p{number}")
    assert image(ledger) == image(ledger_of(machine("new")))
    assert fitting(ledger) == GPU_COUNT * UNITS, "nothing of the lost machine counts"
