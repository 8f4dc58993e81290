"""Why pods fit nowhere: refusals are found again only for nodes that changed, and each reason is told once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION as ALLOCATION
from gputile.core.kube_predicates.node_answers import node_refusals
from gputile.core.refusal import FitRule, PredicateRule, Refusal, refusal_by
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.tools.simulator.refusals import FITS, JudgedNodes, Refusals, fits_nowhere_text
from tests.fakes.corebuilders import allocation_text, gpu_node, ledger_of, pod, request_of, share

pytestmark = pytest.mark.requirement("B4")


NAMES = ("a", "b", "c", "d", "e")
NODES = (("a", "cgpu", 2), ("b", "cgpu", 2), ("c", "share", 2), ("d", "", 2), ("e", "core_mem", 0))
ASKS = ({"mem": 3}, {"mem": 9}, {"mem": 6, "count": 2}, {"nvidia.com/gpu": 1}, {"mem": 2, "core": 20})


@st.composite
def events(draw: st.DrawFn) -> Pod | str:
    """Return a pod to apply, or the UID of one to remove."""
    name, number = draw(st.sampled_from(NAMES)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["pod", "pod", "pod", "gone", "plain"]))
    if kind == "gone":
        return f"p{number}"
    if kind == "plain":
        return pod(f"q{number}", node=name, cpu="3")
    held = share(f"GPU-{name}-{draw(st.integers(0, 1))}", draw(st.sampled_from([1024, 4096, 8192])))
    return pod(f"p{number}", node=name, annotations={ALLOCATION: allocation_text(held)}, mem=held.mib // 1024)


def told(refusal: Refusal[FitRule] | None) -> tuple[FitRule, str] | None:
    return (refusal.rule, refusal.text) if refusal is not None else None


@given(st.lists(st.tuples(events(), st.sampled_from(ASKS)), max_size=20))
def test_kept_refusals_are_those_of_the_engine(steps: list[tuple[Pod | str, dict[str, int]]]) -> None:
    ledger = ledger_of(*(gpu_node(name, mode=mode, sizes=[8192] * count) for name, mode, count in NODES))
    engine = PlacementEngine(ledger)
    refusals = Refusals(engine)
    for event, asks in steps:
        if isinstance(event, str):
            ledger.remove_pod(event)
        else:
            ledger.apply_pod(event)
        request = request_of(pod(asks=asks))
        names = (*NAMES, "unknown")
        found, numbers = refusals.lookup(request, np.array([ledger.row_of.get(name, -1) for name in names]))
        said = [None if number == FITS else told(found[number]) for number in numbers.tolist()]
        assert said == [told(engine.refusal(request, name)) for name in names]
        assert len(set(map(told, found))) == len(found)


def test_the_closest_nodes_are_told_first_and_a_few_by_name() -> None:
    names = ["b", "a", "c", "d", "e", "f"]
    told_of = [Refusal(FitRule.MODE, "its mode is another"), Refusal(FitRule.GPUS_TAKEN, "GPU 0 is in use")]
    in_tree = node_refusals([None] * 5 + [refusal_by(PredicateRule.TOO_MANY_PODS)])
    said = fits_nowhere_text(JudgedNodes(names, {}), in_tree, told_of, np.array([1, 0, 0, 0, 0, FITS], np.intp))
    assert said == (
        "fits none of 6 node(s); b: GPU 0 is in use; 4 nodes (a, c, d, ...): its mode is another; 1 Too many pods (f)"
    )
