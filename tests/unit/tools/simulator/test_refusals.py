"""Why pods fit nowhere: refusals are found again only for nodes that changed, and each reason is told once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import ALLOCATION_ANNOTATION as ALLOCATION
from gputile.core.kube_predicates.node_answers import node_refusals
from gputile.core.ledger.events import LedgerEvent, PodApplied, PodDeleted
from gputile.core.refusal import FitRule, PredicateRule, Refusal, refusal_by
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.tools.simulator.refusals import FITS, JudgedNodes, Refusals, fits_nowhere_text
from tests.fakes.corebuilders import allocation_text, gpu_node, ledger_of, pod, request_of, share

pytestmark = pytest.mark.requirement("B4")

IN_TREE = [
    None,
    refusal_by(PredicateRule.INSUFFICIENT, about="cpu"),
    refusal_by(PredicateRule.TOO_MANY_PODS),
    refusal_by(PredicateRule.UNTOLERATED_TAINT, about="{k: v}"),
]
TOLD = [Refusal(rule, f"GPU {i} is in use") for i, rule in enumerate([*FitRule, *FitRule])]


def names_text(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")


def node_by_node(answers: list[tuple[str, Refusal[PredicateRule] | None, Refusal[FitRule] | None]]) -> str:
    by_gpu: dict[Refusal[FitRule], list[str]] = {}
    others: dict[str, list[str]] = {}
    for name, in_tree, told in answers:
        if told is not None:
            by_gpu.setdefault(told, []).append(name)
        else:
            others.setdefault(in_tree.text if in_tree is not None else "did not fit", []).append(name)
    parts = []
    for told in sorted(by_gpu, key=lambda told: -told.rule)[:10]:
        names = by_gpu.pop(told)
        who = names[0] if len(names) == 1 else f"{len(names)} nodes ({names_text(names)})"
        parts.append(f"{who}: {told.text}")
    if by_gpu:
        parts.append(f"and {sum(map(len, by_gpu.values()))} more nodes for want of GPUs")
    parts += [f"{len(names)} {text} ({names_text(names)})" for text, names in others.items()]
    return f"fits none of {len(answers)} node(s); " + "; ".join(parts)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[ab\-1-3]{1,4}", fullmatch=True),
            st.sampled_from(IN_TREE),
            st.one_of(st.none(), st.sampled_from(TOLD)),
        ),
        unique_by=lambda each: each[0],
        min_size=1,
        max_size=40,
    )
)
def test_words_of_all_nodes_are_those_of_each(
    answers: list[tuple[str, Refusal[PredicateRule] | None, Refusal[FitRule] | None]],
) -> None:
    names, in_tree, told = zip(*answers, strict=True)
    by_gpu = np.array([FITS if each is None else TOLD.index(each) for each in told], np.intp)
    found = fits_nowhere_text(JudgedNodes(names, {}), node_refusals(in_tree), TOLD, by_gpu)
    assert found == node_by_node(answers)


NAMES = ("a", "b", "c", "d", "e")
NODES = (("a", "cgpu", 2), ("b", "cgpu", 2), ("c", "share", 2), ("d", "", 2), ("e", "core_mem", 0))
ASKS = ({"mem": 3}, {"mem": 9}, {"mem": 6, "count": 2}, {"nvidia.com/gpu": 1}, {"mem": 2, "core": 20})


@st.composite
def events(draw: st.DrawFn) -> LedgerEvent:
    name, number = draw(st.sampled_from(NAMES)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["pod", "pod", "pod", "gone", "plain"]))
    if kind == "gone":
        return PodDeleted(f"p{number}")
    if kind == "plain":
        return PodApplied(pod(f"q{number}", node=name, cpu="3"))
    held = share(f"GPU-{name}-{draw(st.integers(0, 1))}", draw(st.sampled_from([1024, 4096, 8192])))
    bound = pod(f"p{number}", node=name, annotations={ALLOCATION: allocation_text(held)}, mem=held.mib // 1024)
    return PodApplied(bound)


def told(refusal: Refusal[FitRule] | None) -> tuple[FitRule, str] | None:
    return (refusal.rule, refusal.text) if refusal is not None else None


@given(st.lists(st.tuples(events(), st.sampled_from(ASKS)), max_size=20))
def test_kept_refusals_are_those_of_the_engine(steps: list[tuple[LedgerEvent, dict[str, int]]]) -> None:
    ledger = ledger_of(*(gpu_node(name, mode=mode, sizes=[8192] * count) for name, mode, count in NODES))
    engine = PlacementEngine(ledger)
    refusals = Refusals(engine)
    for event, asks in steps:
        ledger.apply(event)
        request = request_of(pod(asks=asks))
        names = (*NAMES, "unknown")
        found, numbers = refusals.told(request, np.array([ledger.row_of.get(name, -1) for name in names]))
        said = [None if number == FITS else told(found[number]) for number in numbers.tolist()]
        assert said == [told(engine.refusal(request, name)) for name in names]
        assert len(set(map(told, found))) == len(found)
