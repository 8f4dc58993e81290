"""A node that Kubernetes has closed is shown as one that takes nothing, and says why."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeCondition, NodeSpec, NodeStatus, Taint
from gputile.api.reasons import ConditionType
from gputile.api.well_known import GPU_MEMORY
from gputile.tools.web.page.records import NodeTile
from gputile.tools.web.page.state import PageState
from tests.unit.tools.web.pages import machine

pytestmark = pytest.mark.requirement("B7")

CLOSED = {
    "not ready": (NodeStatus(conditions=(NodeCondition(type="Ready", status="Unknown"),)), (), "it is not ready"),
    "unreachable": (
        NodeStatus(),
        (Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule"),),
        "it has the taint node.kubernetes.io/unreachable",
    ),
    "nothing offered": (
        NodeStatus(allocatable={"pods": "110", GPU_MEMORY: "0"}),
        (),
        f"its kubelet offers no {GPU_MEMORY}",
    ),
}
OPEN = {
    "ready": (NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),)), ()),
    "a taint of people": (NodeStatus(), (Taint(key="nvidia.com/gpu", effect="NoSchedule"),)),
    "a hint": (NodeStatus(), (Taint(key="node.kubernetes.io/x", effect="PreferNoSchedule"),)),
    "cordoned": (NodeStatus(), (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)),
    "offered": (NodeStatus(allocatable={"pods": "110", GPU_MEMORY: "30"}), ()),
}


def tile_of(node: Node) -> NodeTile:
    state = PageState(Configuration())
    state.nodes_replaced([node])
    state.take_difference()
    return state.page.nodes["a"]


@pytest.mark.parametrize(("status", "taints", "why"), CLOSED.values(), ids=CLOSED)
def test_a_node_that_kubernetes_has_closed_takes_nothing(
    status: NodeStatus, taints: tuple[Taint, ...], why: str
) -> None:
    node = msgspec.structs.replace(machine("a"), status=status, spec=NodeSpec(taints=taints))
    tile = tile_of(node)
    assert tile.serves == ""
    assert tile.problems[-1] == f"takes no GPU pods: {why}"


def test_a_silent_agent_alone_closes_nothing() -> None:
    """The extender places pods where the kubelet offers GPUs, whatever is said of the agent."""
    said = NodeCondition(type=ConditionType.AGENT_SILENT, status="True", reason="NothingOffered", message="of late")
    for units, serves in (("30", "memory"), ("0", "")):
        status = NodeStatus(allocatable={"pods": "110", GPU_MEMORY: units}, conditions=(said,))
        tile = tile_of(msgspec.structs.replace(machine("a"), status=status))
        assert (tile.silent, tile.serves) == (True, serves)


@pytest.mark.parametrize(("status", "taints"), OPEN.values(), ids=OPEN)
def test_a_node_that_takes_pods_says_which(status: NodeStatus, taints: tuple[Taint, ...]) -> None:
    node = msgspec.structs.replace(machine("a"), status=status, spec=NodeSpec(taints=taints))
    tile = tile_of(node)
    assert (tile.serves, tile.problems) == ("memory", ())
