"""What is free, in which pieces, and which of them the pods that run could not use."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import NodeCondition, NodeSpec, NodeStatus, Taint
from gputile.api.well_known import GPU_MEMORY
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.free_memory import FREE_STEPS_GIB, MIB_OF_GIB, FreeMemory, free_memory
from tests.fakes.corebuilders import book, gpu_node, ledger_of, share

pytestmark = pytest.mark.requirement("B7")
GIB = MIB_OF_GIB


def summed(ledger: Ledger) -> FreeMemory:
    return free_memory(ledger)


def hole(found: FreeMemory, gib: int) -> int:
    return found.free_by_step[FREE_STEPS_GIB.index(gib)]


def test_nothing_is_free_in_no_cluster() -> None:
    assert summed(ledger_of()) == FreeMemory()
    assert summed(ledger_of()).fragmentation == 0


def test_free_memory_is_counted_by_the_size_of_the_hole() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[16 * GIB] * 4))
    book(ledger, "a", "n", share("GPU-n-0", 13 * GIB))
    book(ledger, "b", "n", share("GPU-n-1", 16 * GIB - 512))
    found = summed(ledger)
    assert (found.total, found.booked, found.free) == (64 * GIB, 29 * GIB - 512, 35 * GIB + 512)
    assert (hole(found, 0), hole(found, 2), hole(found, 16)) == (512, 3 * GIB, 32 * GIB)
    assert (found.largest_free, found.free_gpus) == (16 * GIB, 2)


def test_the_definition_of_the_paper_by_hand() -> None:
    """Two kinds of pods, 4 and 12 GiB, as often: of the free_by_step of 4, 8 and 16 GiB the second can use one only."""
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[16 * GIB] * 3))
    book(ledger, "small", "n", share("GPU-n-0", 4 * GIB))
    book(ledger, "large", "n", share("GPU-n-1", 12 * GIB))
    book(ledger, "rest", "n", share("GPU-n-0", 4 * GIB))
    book(ledger, "more", "n", share("GPU-n-1", 4 * GIB))  # its hole is 0 then
    found = summed(ledger)
    assert found.free == (8 + 0 + 16) * GIB
    # F(4 GiB) = 0; F(12 GiB) = 8 GiB; the workload is three of the one and one of the other.
    assert found.unusable == pytest.approx(8 * GIB / 4)
    assert found.fragmentation == pytest.approx(2 / 24)


def test_a_node_that_a_pod_does_not_fit_has_nothing_for_it() -> None:
    """A pod on two GPUs cannot use the one that a node has left."""
    ledger = ledger_of(gpu_node("a", mode="cgpu", sizes=[16 * GIB] * 2), gpu_node("b", mode="cgpu", sizes=[16 * GIB]))
    book(ledger, "pair", "a", share("GPU-a-0", 16 * GIB), share("GPU-a-1", 16 * GIB))
    found = summed(ledger)
    assert found.fragmentation == 1


def test_gpus_that_are_unhealthy_or_of_another_plugin_are_not_counted() -> None:
    ledger = ledger_of(
        gpu_node("n", mode="cgpu", sizes=[16 * GIB] * 2, unhealthy=[1]),
        gpu_node("m", inventory="", allocatable={"nvidia.com/gpu": "4"}),
    )
    found = summed(ledger)
    assert (found.total, found.free_gpus) == (16 * GIB, 1)


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (NodeSpec(unschedulable=True), NodeStatus()),
        (NodeSpec(taints=(Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule"),)), NodeStatus()),
        (NodeSpec(), NodeStatus(conditions=(NodeCondition(type="Ready", status="Unknown"),))),
        (NodeSpec(), NodeStatus(allocatable={GPU_MEMORY: "0", "pods": "110"})),
    ],
    ids=["cordoned", "tainted", "not ready", "nothing offered"],
)
def test_nothing_is_free_on_nodes_that_take_no_pods(spec: NodeSpec, status: NodeStatus) -> None:
    closed = msgspec.structs.replace(gpu_node("shut", mode="cgpu", sizes=[80 * GIB]), spec=spec, status=status)
    ledger = ledger_of(closed, gpu_node("n", mode="cgpu", sizes=[16 * GIB]))
    book(ledger, "a", "shut", share("GPU-shut-0", 4 * GIB))
    found = summed(ledger)
    assert (found.total, found.booked) == (96 * GIB, 4 * GIB)
    assert (found.free, found.largest_free, found.free_gpus) == (16 * GIB, 16 * GIB, 1)


def test_whole_gpus_are_used_where_nothing_is_booked() -> None:
    ledger = ledger_of(gpu_node("n", mode="default", sizes=[16 * GIB] * 2))
    book(ledger, "a", "n", share("GPU-n-0", 16 * GIB), whole=True)
    found = summed(ledger)
    assert (found.booked, found.free, found.free_gpus, found.fragmentation) == (16 * GIB, 16 * GIB, 1, 0)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 15)), max_size=20))
def test_the_ratio_is_a_part_of_what_is_free(bookings: list[tuple[int, int]]) -> None:
    ledger = ledger_of(*(gpu_node(name, mode="cgpu", sizes=[15 * GIB] * 4) for name in ("a", "b")))
    for number, (gpu, gib) in enumerate(bookings):
        node = "ab"[gpu // 4]
        book(ledger, f"p{number}", node, share(f"GPU-{node}-{gpu % 4}", gib * GIB))
    found = summed(ledger)
    assert 0 <= found.fragmentation <= 1
    assert found.free == sum(found.free_by_step) <= found.total
