"""Arrays of what nodes have left say what one node after the other says."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.core.kube_predicates.node_answers import MOST_RESOURCES, SpareAmounts
from gputile.core.kube_predicates.pod_requests import PODS, TOO_MANY_PODS, insufficient, lacks

pytestmark = pytest.mark.requirement("C2")

amounts = st.one_of(st.integers(0, 4), st.sampled_from([2**62 - 1, 2**62, 2**62 + 1, 2**63, 2**80]))
resources = st.dictionaries(st.sampled_from(["cpu", "memory", PODS, "example.com/fpga"]), amounts)
nodes = st.lists(st.tuples(resources, resources), min_size=1, max_size=4)


@given(nodes, nodes, resources)
@example([({PODS: 1, "cpu": 2**63}, {})], [], {"cpu": 2**62 - 1})
@example([({PODS: 1, "cpu": 2**80}, {"cpu": 2**80 - 1})], [], {"cpu": 2})
def test_all_nodes_at_once_answer_as_each_alone(
    at_first: list[tuple[dict[str, int], dict[str, int]]],
    later: list[tuple[dict[str, int], dict[str, int]]],
    asked: dict[str, int],
) -> None:
    needs = {name: amount for name, amount in asked.items() if amount}
    spare = SpareAmounts(at_first)
    spare.first_lacking([(PODS, 1), *needs.items()])
    for row, (allocatable, used) in enumerate(later[: len(at_first)]):
        spare.update(row, allocatable, used)
    found = spare.first_lacking([(PODS, 1), *needs.items()])
    now = later[: len(at_first)] + at_first[len(later) :]
    if found is None:
        assert max(needs.values()) >= 2**62
        return
    refusals = [TOO_MANY_PODS, *map(lacks, needs)]
    said = [None if first < 0 else refusals[first] for first in found.tolist()]
    assert said == [insufficient(needs, used, allocatable) for allocatable, used in now]


def test_pods_that_name_ever_other_resources_make_no_array_each() -> None:
    spare = SpareAmounts([({PODS: 110}, {})])
    answers = [spare.first_lacking([(f"example.com/r{i}", 1)]) for i in range(2 * MOST_RESOURCES)]
    assert [answer is None for answer in answers] == [False] * MOST_RESOURCES + [True] * MOST_RESOURCES
