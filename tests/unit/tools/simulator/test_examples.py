"""The examples are read without a mistake, and every pod in them has a node that it may go to."""

from pathlib import Path

import pytest

from gputile.core.kube_predicates.predicates import Predicates
from gputile.tools.simulator.scenario import load_scenario

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


@pytest.mark.parametrize(
    ("cluster", "workloads", "pods"),
    [("cluster", ["workloads"], 22), ("inspect-binpack", [], 8), ("inspect-spread", [], 3)],
)
def test_example(cluster: str, workloads: list[str], pods: int) -> None:
    scenario = load_scenario(
        [str(EXAMPLES / f"{cluster}.yaml")], [str(EXAMPLES / f"{name}.yaml") for name in workloads]
    )
    assert len(scenario.pending) == pods
    predicates = Predicates(scenario.nodes)
    for pod in scenario.pending:
        assert None in predicates.reasons(pod).values()
