"""Another device plugin on the node is noticed."""

import pytest

from gputile.api.core import Node, NodeStatus, PodStatus
from gputile.api.well_known import WHOLE_GPU
from gputile.node.agent.advertise.other_plugin import foreign_condition, foreign_plugin
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod

WITH_GPUS = Node(status=NodeStatus(allocatable={WHOLE_GPU: "4"}))


def test_nothing_is_foreign_on_an_empty_node() -> None:
    assert foreign_plugin([], [], None, served_before=False) == ""
    assert foreign_plugin([], [], Node(), served_before=False) == ""
    assert foreign_condition("").status == "False"


def test_a_socket_that_answers_is() -> None:
    evidence = foreign_plugin(["nvidia-gpu.sock"], [], Node(), served_before=True)
    assert "nvidia-gpu.sock" in evidence
    assert foreign_condition(evidence).status == "True"
    assert evidence in foreign_condition(evidence).message


def test_gpus_that_gputile_never_offered_are() -> None:
    assert "4 nvidia.com/gpu" in foreign_plugin([], [], WITH_GPUS, served_before=False)
    assert foreign_plugin([], [], WITH_GPUS, served_before=True) == ""


@pytest.mark.parametrize("phase", ["Running", "Pending", "Failed"])
def test_a_plugin_pod_is_while_it_runs(phase: str) -> None:
    pod = simple_pod("nvdp", container(), labels={"name": "nvidia-device-plugin-ds"})
    pod.status = PodStatus(phase=phase)
    assert bool(foreign_plugin([], [pod], Node(), served_before=False)) == (phase == "Running")
