"""What a pod says of its eviction, right or wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import PodCondition
from gputile.api.well_known import DELETION_COST_ANNOTATION
from gputile.core.scheduling.eviction_facts import DEFAULT_GRACE_S, MOST_GRACE_S, eviction_facts
from tests.corebuilders import pod


@pytest.mark.parametrize(
    ("text", "cost"), [("7", 7), ("-7", -7), ("", 0), ("1e3", 0), ("--1", 0), ("9" * 400, 0), ("9" * 10, 2**31 - 1)]
)
def test_the_cost_is_an_int32_or_0(text: str, cost: int) -> None:
    assert eviction_facts(pod(mem=1, annotations={DELETION_COST_ANNOTATION: text})).cost == cost


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    said = pod(mem=1, annotations={DELETION_COST_ANNOTATION: text})
    said.metadata.creation_timestamp = said.metadata.deletion_timestamp = text
    assert abs(eviction_facts(said).cost) < 2**31


def test_times_are_those_of_the_api_server() -> None:
    bound = pod(mem=1, node="n")
    bound.metadata.creation_timestamp = "1970-01-01T00:00:10Z"
    assert eviction_facts(bound).started_at == 10
    bound.status.conditions = (
        PodCondition(type="PodScheduled", status="True", last_transition_time="1970-01-01T00:01:00Z"),
    )
    bound.metadata.deletion_timestamp = "1970-01-01T00:02:00Z"
    facts = eviction_facts(bound)
    assert (facts.started_at, facts.leaves_at, facts.grace_s) == (60, 120, DEFAULT_GRACE_S)
    bound.spec.termination_grace_period_seconds = 10**9
    assert eviction_facts(bound).grace_s == MOST_GRACE_S + 1
