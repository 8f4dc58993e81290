"""The sentence that is made of numbers is the one that is made node by node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.core.kube_predicates.node_answers import node_refusals
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal, PredicateRule
from gputile.core.placement.fit_refusal import FitRule
from gputile.tools.simulator.refusals import FITS, NodeNames, ToldRefusal, fits_nowhere_text

pytestmark = pytest.mark.requirement("B4")

IN_TREE = [
    None,
    PredicateRefusal(PredicateRule.INSUFFICIENT, "cpu"),
    PredicateRefusal(PredicateRule.TOO_MANY_PODS),
    PredicateRefusal(PredicateRule.UNTOLERATED_TAINT, "{k: v}"),
]
TOLD = [ToldRefusal(f"GPU {i} is in use", rule) for i, rule in enumerate([*FitRule, *FitRule])]


def names_text(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")


def node_by_node(answers: list[tuple[str, PredicateRefusal | None, ToldRefusal | None]]) -> str:
    by_gpu: dict[ToldRefusal, list[str]] = {}
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
    answers: list[tuple[str, PredicateRefusal | None, ToldRefusal | None]],
) -> None:
    names, in_tree, told = zip(*answers, strict=True)
    by_gpu = np.array([FITS if each is None else TOLD.index(each) for each in told], np.intp)
    found = fits_nowhere_text(NodeNames(names), node_refusals(in_tree), TOLD, by_gpu)
    assert found == node_by_node(answers)


@pytest.mark.parametrize("kinds", [3, 40_000])
def test_many_nodes_are_grouped_as_few_are(kinds: int) -> None:
    """More kinds of refusals than 16 bits can number."""
    told = [ToldRefusal(f"GPU {i} is in use", FitRule.GPUS_TAKEN) for i in range(kinds)]
    numbers = np.arange(80_000) % kinds
    nodes = [f"n{i}" for i in range(len(numbers))]
    found = fits_nowhere_text(NodeNames(nodes), node_refusals([None] * len(nodes)), told, numbers)
    assert found == node_by_node([(nodes[i], None, told[number]) for i, number in enumerate(numbers.tolist())])
