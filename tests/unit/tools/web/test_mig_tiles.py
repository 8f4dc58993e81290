"""Nodes with MIG instances, their pods, and those that wait for instances are on the page, as what they are."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import MIG_PREFIX, WHOLE_GPU
from gputile.tools.web.records import MigCount, MigTile, NodeTile, PageContent
from gputile.tools.web.state import PageState
from gputile.tools.web.viewers import Rights, visible_nodes
from tests.fakes.corebuilders import gpu_node, pod

pytestmark = pytest.mark.requirement("B7", "G3")

SMALL, LARGE = MIG_PREFIX + "1g.5gb", MIG_PREFIX + "3g.20gb"


def split_node(gpus: int = 0, small: int = 4) -> Node:
    """A node in mode default with this many whole GPUs and small instances, and a large one."""
    allocatable = {"pods": "110", SMALL: str(small), LARGE: "1", WHOLE_GPU: str(gpus)}
    return gpu_node("n", mode="default", sizes=[24576] * gpus, allocatable=allocatable)


def with_instances(name: str, node: str = "", count: int = 1, phase: str = "", profile: str = SMALL) -> Pod:
    return pod(name, node=node, asks={profile: count}, phase=phase)


def page_of(*objects: Node | Pod) -> PageContent:
    state = PageState(Configuration())
    for each in objects:
        if isinstance(each, Node):
            state.node_applied(each)
        else:
            state.pod_applied(each)
    state.take_difference()
    return state.page


def tile_of(*objects: Node | Pod) -> NodeTile:
    return page_of(*objects).nodes["n"]


def test_a_node_with_nothing_but_instances_is_shown_with_its_pods() -> None:
    tile = tile_of(split_node(), with_instances("a", "n"), with_instances("b", "n", 2))
    assert tile.instances == (MigTile("1g.5gb", 4, 3), MigTile("3g.20gb", 1))
    assert [(each.name, each.instances) for each in tile.pods] == [
        ("a", (MigCount("1g.5gb", 1),)),
        ("b", (MigCount("1g.5gb", 2),)),
    ]
    assert (tile.serves, tile.gpus, tile.problems) == ("instances", (), ())


def test_instances_are_to_be_had_where_no_whole_gpu_is_offered() -> None:
    node = split_node(gpus=1)
    status = msgspec.structs.replace(node.status, allocatable={"pods": "110", SMALL: "4", WHOLE_GPU: "0"})
    assert tile_of(msgspec.structs.replace(node, status=status)).serves == "instances"


def test_a_pod_that_waits_for_an_instance_is_pending() -> None:
    pending = page_of(split_node(), with_instances("w", count=2)).pending
    assert pending["default/w"].asks == f"asks for 2 of {SMALL}"


def test_an_instance_is_free_when_its_pod_has_ended_gone_or_moved() -> None:
    state = PageState(Configuration())
    state.node_applied(split_node())

    def held() -> int:
        state.take_difference()
        return state.page.nodes["n"].instances[0].booked

    state.pod_applied(with_instances("a", "n"))
    state.pod_applied(with_instances("b", "n"))
    state.pod_applied(with_instances("b", "n"))
    assert held() == 2
    state.pod_applied(with_instances("a", "n", phase="Succeeded"))
    assert held() == 1
    state.pod_deleted("b")
    assert held() == 0


def test_whoever_may_not_list_the_pods_sees_how_many_instances_are_taken() -> None:
    (tile,) = visible_nodes([tile_of(split_node(), with_instances("a", "n"))], Rights())
    assert tile.pods[0].instances == (MigCount("1g.5gb", 1),)
    assert "a" not in {each.name for each in tile.pods}
