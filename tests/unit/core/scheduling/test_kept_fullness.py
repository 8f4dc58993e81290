"""What is kept of a shape is what is computed anew, whatever has changed and whatever was asked in between."""

from hypothesis import given
from hypothesis import strategies as st

from gputile.core.ledger.events import NodeApplied, NodeDeleted, PodDeleted
from gputile.core.placement.vectorized import fullness
from gputile.core.scheduling import placement_engine
from gputile.core.scheduling.placement_engine import KeptFullness
from tests.corebuilders import book, gpu_node, ledger_of, pod, request_of, share

ASKS = ({"mem": 3}, {"mem": 9}, {"mem": 6, "count": 2}, {"nvidia.com/gpu": 1}, {"mem": 2, "core": 20})
MODES = ("cgpu", "share", "", "core_mem")
steps = st.one_of(
    st.tuples(st.just("node"), st.integers(0, 40), st.sampled_from([0, 2, 12])),
    st.tuples(st.just("gone"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("pod"), st.integers(0, 3), st.integers(0, 11)),
    st.tuples(st.just("ended"), st.integers(0, 3), st.just(0)),
)


@given(st.lists(st.tuples(steps, st.sampled_from(ASKS)), max_size=25))
def test_kept_fullness_is_that_of_the_nodes_now(told: list[tuple[tuple[str, int, int], dict[str, int]]]) -> None:
    ledger = ledger_of(*(gpu_node(f"n{i}", mode=mode, sizes=[8192] * 2) for i, mode in enumerate(MODES)))
    kept = KeptFullness(ledger)
    for (what, number, amount), asks in told:
        if what == "node":
            sizes = [8192] * amount
            ledger.apply(NodeApplied(gpu_node(f"n{number}", mode=MODES[number % len(MODES)], sizes=sizes)))
        elif what == "gone":
            ledger.apply(NodeDeleted(f"n{number}"))
        elif what == "pod":
            ledger.apply(PodDeleted(f"p{number}"))
            book(ledger, f"p{number}", f"n{number}", share(f"GPU-n{number}-{amount}", 2048))
        else:
            ledger.apply(PodDeleted(f"p{number}"))
        shape, arrays = request_of(pod(asks=asks)).shape, ledger.node_arrays
        found = kept.of(shape)
        anew = fullness(arrays, shape, ledger.group_number(shape.trust_group), slice(0, arrays.rows))
        by_fullness = anew.plain < -1
        assert found.plain.tolist() == anew.plain.tolist()
        for one, other in ((found.gpu, anew.gpu), (found.node, anew.node)):
            assert one[by_fullness].tolist() == other[by_fullness].tolist()


def test_few_shapes_are_kept() -> None:
    """Each has three numbers for each node."""
    kept = KeptFullness(ledger_of(gpu_node("n")))
    asked = [kept.of(request_of(pod(asks={"mem": i + 1})).shape) for i in range(placement_engine.MOST_SHAPES + 1)]
    again = [kept.of(request_of(pod(asks={"mem": i + 1})).shape) for i in reversed(range(len(asked)))]
    assert [one is other for one, other in zip(asked, reversed(again), strict=True)] == [False] + [True] * (
        len(asked) - 1
    )
