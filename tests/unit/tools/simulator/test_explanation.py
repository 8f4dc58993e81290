"""What is said of why a pod is where it is: how the cluster would take it now, had it no node yet."""

from typing import Literal

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod, Taint
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.tools.simulator.explanation import explain_pod
from tests.fakes.corebuilders import bound, gpu_node

pytestmark = pytest.mark.requirement("B4", "B7")

GIB = 1024


def machine(name: str, taints: tuple[Taint, ...] = ()) -> Node:
    room = {"aliyun.com/gpu-mem": "60", "pods": "110"}
    node = gpu_node(name, mode="cgpu", unit_mib=GIB, allocatable=room)
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=taints))


def said(
    subject: Pod,
    nodes: list[Node],
    *others: Pod,
    placement: Literal["binpack", "spread", "packing"] = "binpack",
    gangs: bool = False,
) -> str:
    """Return what is said beside where it is, "" for nothing."""
    configuration = Configuration(placement=placement, admission=AdmissionConfiguration(gangs=gangs))
    return " ".join(explain_pod(subject, nodes, [subject, *others], configuration, 0).text[1:])


def test_the_policy_puts_its_node_first_or_another_one() -> None:
    nodes, other = [machine("a"), machine("b")], bound("other", "b")
    assert said(bound("p", "b"), nodes, other) == (
        "2 of 2 node(s) would take the pod now, and binpack puts this one first."
    )
    assert (
        said(bound("p", "a"), nodes, other) == "2 of 2 node(s) would take the pod now, and binpack would put b first."
    )
    assert said(bound("p", "a"), nodes, other, placement="spread") == (
        "2 of 2 node(s) would take the pod now, and spread puts this one first."
    )


def test_a_node_that_has_no_rival() -> None:
    closed = machine("b", (Taint(key="dedicated", value="x", effect="NoSchedule"),))
    assert said(bound("p", "a"), [machine("a"), closed]) == "No other node would take the pod now."


def test_a_node_that_would_not_take_it_any_more_says_why() -> None:
    closed = machine("b", (Taint(key="dedicated", value="x", effect="NoSchedule"),))
    assert said(bound("p", "b"), [machine("a"), closed]).startswith("It would not be placed there now: ")
    full = [bound(f"full-{gpu}", "b", gpu, 14) for gpu in range(4)]
    text = said(bound("p", "b"), [machine("a"), machine("b")], *full)
    assert text.startswith("It would not be placed there now: ")
    assert "the pod needs 4 GiB on one GPU" in text


def test_a_gang_is_placed_together() -> None:
    found = bound("p", "a")
    found.metadata.labels = {GANG_NAME_LABEL: "train", GANG_SIZE_LABEL: "3"}
    nodes = [machine("a"), machine("b")]
    assert said(found, nodes, gangs=True) == "The pods of its gang train were placed together."
    assert said(found, nodes).startswith("2 of 2 node(s)"), "where gangs are off, the labels mean nothing"
