"""Which containers' weights add up on a GPU: those of containers that run at one time."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.core.devices.request import Phase
from gputile.node.agent.decisions.publishing.time_shares import RunningWeights

pytestmark = pytest.mark.requirement("G4")

Member = tuple[Phase, int]
PHASES = st.lists(st.tuples(st.sampled_from(Phase), st.integers(1, 9)), min_size=1, max_size=4)


def weights_of(pods: Iterable[list[Member]]) -> RunningWeights:
    found = RunningWeights()
    for uid, members in enumerate(pods):
        for phase, weight in members:
            found.add("GPU-a", str(uid), phase, weight)
    return found


def test_an_init_container_takes_nothing_from_those_after_it() -> None:
    found = weights_of([[(Phase.INIT, 3), (Phase.APP, 1)], [(Phase.APP, 1)]])
    assert found.while_it_runs("GPU-a", "0", Phase.APP, 1) == 2
    assert found.while_it_runs("GPU-a", "0", Phase.INIT, 3) == 4
    assert found.while_it_runs("GPU-a", "1", Phase.APP, 1) == 4, "beside the init container"


def running(members: list[Member]) -> Iterator[list[Member]]:
    """Yield which containers of a pod may run at one time."""
    sidecars = [each for each in members if each[0] is Phase.SIDECAR]
    yield sidecars + [each for each in members if each[0] is Phase.APP]
    for each in members:
        if each[0] is Phase.INIT:
            yield [*sidecars, each]


@given(st.lists(PHASES, min_size=1, max_size=3))
def test_whoever_runs_at_one_time_gets_no_more_than_the_gpu(pods: list[list[Member]]) -> None:
    found = weights_of(pods)
    for moment in product(*map(running, pods)):
        assert (
            sum(
                Fraction(weight, found.while_it_runs("GPU-a", str(uid), phase, weight))
                for uid, members in enumerate(moment)
                for phase, weight in members
            )
            <= 1
        )
