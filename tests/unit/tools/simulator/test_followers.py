"""Pods that may follow others are decided again once these are placed, as kube-scheduler's queue does."""

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.tools.simulator.scenario import Scenario
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from tests.unit.tools.simulator.builders import node, pod

pytestmark = pytest.mark.requirement("B4")

TERM = "{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: %s}}}"
NEAR = "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [%s]}}"


def decided(*pods: Pod) -> list[PodOutcome]:
    nodes = [node("a", {"zone": "a"}), node("b", {"zone": "b"})]
    return list(Simulation(Configuration()).run(Scenario(nodes=nodes, pending=list(pods)), lambda: 1))


def near(app: str) -> str:
    return f"{{{NEAR % (TERM % app)}}}"


def placed(outcomes: list[PodOutcome]) -> dict[str, str | None]:
    return {outcome.pod.metadata.name: outcome.node for outcome in outcomes}


def test_a_pod_goes_to_one_that_comes_later() -> None:
    found = decided(pod(near("cache"), "p"), pod("{nodeSelector: {zone: b}}", "cache", {"app": "cache"}))
    assert placed(found) == {"cache": "b", "p": "b"}
    assert [outcome.pod.metadata.name for outcome in found] == ["cache", "p"]


@pytest.mark.parametrize(("length", "left"), [(20, 0), (40, 8)])
def test_a_chain_is_followed_for_a_bounded_number_of_rounds(length: int, left: int) -> None:
    chain = [pod(near(f"p{i + 1}"), f"p{i}", {"app": f"p{i}"}) for i in range(length)]
    found = decided(*chain, pod("{}", f"p{length}", {"app": f"p{length}"}))
    assert len(found) == length + 1
    assert sum(outcome.node is None for outcome in found) == left
