"""What a look at a node costs: preemption and explanations look at nodes without some of their pods, many times."""

from gputile.core.ledger.snapshot import node_state
from tests.costs.calls import calls
from tests.fakes.corebuilders import book, gpu_node, ledger_of, share

GPUS = 8


def cost(pods: int) -> int:
    """Return how many functions are called to look at a node as if all its pods were gone."""
    ledger = ledger_of(gpu_node("n", mode="share", sizes=[1 << 20] * GPUS))
    for number in range(pods):
        book(ledger, f"p{number}", "n", share(f"GPU-n-{number % GPUS}", 1024))
    row = ledger.row_of["n"]
    info, everybody = ledger.node_info(row), frozenset(booking.uid for booking in ledger.bookings())
    assert info is not None
    assert len(everybody) == pods
    assert all(gpu.empty for gpu in node_state(ledger, row, info, everybody).gpus)
    return calls(lambda: node_state(ledger, row, info, everybody))


def test_a_look_at_a_node_without_its_pods_goes_through_them_once() -> None:
    assert cost(128) - cost(16) < 10 * 112
