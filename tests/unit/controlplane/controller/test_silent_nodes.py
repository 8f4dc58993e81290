"""How many nodes have a silent agent, and since when the one that has been silent longest."""

import msgspec
import pytest

from gputile.api.core import Node, NodeCondition
from gputile.api.reasons import ConditionType
from gputile.controlplane.controller.silent_nodes import SilentNodes
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.corebuilders import gpu_node

pytestmark = pytest.mark.requirement("B7")


def node(name: str, status: str = "True") -> Node:
    found = gpu_node(name)
    said = (NodeCondition(type=ConditionType.AGENT_SILENT, status=status),)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=said))


def test_nodes_that_are_silent_for_a_moment_each_are_not_one_that_is_silent_for_long() -> None:
    now = [100.0]
    nodes = SilentNodes(lambda: now[0])
    assert (nodes.count(), nodes.since()) == (0, 0)
    nodes.node_event(Applied(node("a")))
    now[0] = 200.0
    nodes.node_event(Applied(node("a")))
    nodes.node_event(Applied(node("b")))
    assert (nodes.count(), nodes.since()) == (2, 100)
    nodes.node_event(Applied(node("a", "False")))
    assert (nodes.count(), nodes.since()) == (1, 200)


def test_what_is_gone_is_not_silent() -> None:
    nodes = SilentNodes(lambda: 5.0)
    nodes.node_event(Replaced([node("a"), node("b"), node("c", "False")]))
    assert nodes.count() == 2
    nodes.node_event(Deleted(node("a")))
    assert nodes.count() == 1
    nodes.node_event(Replaced([]))
    assert (nodes.count(), nodes.since()) == (0, 0)


def test_silence_that_began_while_the_clock_was_ahead_began_when_that_was_over() -> None:
    now = [1e9]
    nodes = SilentNodes(lambda: now[0])
    nodes.node_event(Applied(node("a")))
    for now[0] in (100.0, 200.0):
        assert nodes.since() == 100
