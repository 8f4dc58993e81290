"""What nominations cost: the event loop is held no longer where there are more nodes and pods."""

from collections.abc import Generator
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.nominations.nomination_planner import MOST_A_ROUND, Nominations
from gputile.core.placement.steps import at_once
from gputile.kube.objects import Replaced
from tests.calls import calls
from tests.costs.test_loop_holds import largest_step
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND
from tests.unit.controlplane.controller.test_nominations import later, node, waiting

pytestmark = pytest.mark.requirement("B3")


def pods(count: int) -> list[Pod]:
    return [waiting(f"p{i}", version=i) for i in range(count)]


def nominations(nodes: int) -> Nominations:
    found = Nominations(Configuration())
    at_once(found.cluster.state.node_event(Replaced([node(f"n{i}", gpus=8) for i in range(nodes)])))
    return found


def round_of(found: Nominations) -> Generator[None, None, Any]:
    return found.steps(NOW * SECOND)


def test_no_step_grows_with_pods_or_nodes() -> None:
    """Not when the pods are listed, not when places are chosen, and not when nominations are cleared."""
    largest = {}
    for size in (20, 160):
        found, listed = nominations(size), pods(2 * size)
        steps = [largest_step(found.pod_event(Replaced(listed)))]
        steps.append(max(largest_step(round_of(found)) for _ in range(4)))
        nominated = [later(each, 1000, f"n{number % size}") for number, each in enumerate(listed)]
        steps.append(largest_step(found.pod_event(Replaced(nominated))))
        steps.append(largest_step(found.steps((NOW + 100) * SECOND)))
        largest[size] = steps
    grown = [after - before for before, after in zip(largest[20], largest[160], strict=True)]
    assert max(grown) < 140, largest


def test_a_pod_costs_the_same_on_more_nodes() -> None:
    costs = {}
    for size in (40, 160):
        found = nominations(size)
        at_once(found.pod_event(Replaced(pods(MOST_A_ROUND))))
        costs[size] = calls(lambda: at_once(round_of(found)))  # noqa: B023 - called at once
    assert costs[160] < 1.5 * costs[40], costs
