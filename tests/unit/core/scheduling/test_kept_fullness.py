"""What is kept of a shape is what is computed anew, whatever has changed and whatever was asked in between."""

from gputile.core.scheduling import placement_engine
from gputile.core.scheduling.placement_engine import KeptFullness
from tests.corebuilders import gpu_node, ledger_of, pod, request_of


def test_few_shapes_are_kept() -> None:
    """Each has three numbers for each node."""
    kept = KeptFullness(ledger_of(gpu_node("n")))
    asked = [kept.of(request_of(pod(asks={"mem": i + 1})).shape) for i in range(placement_engine.MOST_SHAPES + 1)]
    again = [kept.of(request_of(pod(asks={"mem": i + 1})).shape) for i in reversed(range(len(asked)))]
    assert [one is other for one, other in zip(asked, reversed(again), strict=True)] == [False] + [True] * (
        len(asked) - 1
    )
