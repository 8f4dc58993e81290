"""Answers as numbers are the answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.core.kube_predicates.node_answers import node_refusals
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal, PredicateRule

pytestmark = pytest.mark.requirement("C2")

EARLIER = st.sampled_from(
    [None, PredicateRefusal(PredicateRule.UNSCHEDULABLE), PredicateRefusal(PredicateRule.WRONG_OS)]
)
LATER = st.sampled_from([None, PredicateRefusal(PredicateRule.TOO_MANY_PODS), PredicateRefusal(PredicateRule.SPREAD)])


@given(st.lists(st.tuples(EARLIER, LATER)))
def test_the_first_check_that_refuses_is_told_of_each_node(
    said: list[tuple[PredicateRefusal | None, PredicateRefusal | None]],
) -> None:
    earlier, later = (node_refusals(reasons[i] for reasons in said) for i in (0, 1))
    both = earlier.or_else(later)
    assert earlier.each() == [each for each, _ in said]
    assert both.each() == [first or second for first, second in said]
    assert both.open.tolist() == [first is None and second is None for first, second in said]
    assert len(earlier.distinct) == len({each for each, _ in said} - {None})
