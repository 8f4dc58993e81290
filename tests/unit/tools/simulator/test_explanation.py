"""What is said of why a pod is where it is, or waits: how the cluster would take it now, and what is not judged."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod, PodResourceClaim, Taint
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.tools.simulator.explanation import PodExplanation, explain_pod
from tests.fakes.claimbuilders import claim, pod_with_claims, result
from tests.fakes.corebuilders import bound, gpu_node

pytestmark = pytest.mark.requirement("B4", "B7", "B8")

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


NODE = gpu_node("n", mode="cgpu", sizes=[15 * GIB] * 2, claims=True, allocatable={"pods": "110"})
OTHER = gpu_node(
    "o", mode="cgpu", sizes=[80 * GIB], unit_mib=GIB, allocatable={"pods": "110", "aliyun.com/gpu-mem": "80"}
)


def explained(subject: Pod, claims: Sequence[ResourceClaim], nodes: Sequence[Node] = (NODE, OTHER)) -> PodExplanation:
    return explain_pod(subject, nodes, [subject], Configuration(), 0, claims)


def held(index: int, memory: str) -> ResourceClaim:
    return claim(f"held-{index}", result("n", index, memory=memory), pods=[f"holder-{index}"], memory=memory)


def test_a_claim_that_fits() -> None:
    found = explained(pod_with_claims("p", "c"), [claim("c", memory="8Gi"), held(0, "12Gi")])
    assert (found.state, found.placed) == ("Fits", True)
    assert found.text[0] == "Pod default/p asks for 8 GiB on one GPU by a claim."
    assert [report.name for report in found.reports if report.fits] == ["n"]
    (other,) = [report for report in found.reports if report.name == "o"]
    assert "it offers its GPUs by extended resources; the pod requests them by claims" in other.gpu


def test_a_claim_that_fits_nowhere() -> None:
    found = explained(pod_with_claims("p", "c"), [claim("c", memory="8Gi"), held(0, "12Gi"), held(1, "9Gi")])
    assert (found.state, found.placed) == ("Pending", False)
    nearest = found.reports[0]
    assert "GPU 1 has 6 GiB of 15 GiB free; the pod needs 8 GiB" in nearest.gpu
    assert [[each.name for each in gpu.pods] for gpu in nearest.gpus] == [["holder-0"], ["holder-1"]]


def test_what_is_not_judged_is_said() -> None:
    selected = claim("c", memory="1Gi", request={"selectors": [{"cel": {"expression": "true"}}]})
    subject = pod_with_claims("p", "c", "nic")
    not_made = PodResourceClaim(name="t", resource_claim_template_name="t")
    subject.spec.resource_claims = (*subject.spec.resource_claims, not_made)
    found = explained(msgspec.structs.replace(subject), [selected])
    said = " ".join(found.text)
    assert "Not judged: claim nic," in said
    assert "Not judged: 1 claim(s) that have not been made yet." in said
    assert "selectors: kube-scheduler evaluates them" in said


def test_a_node_is_labelled_where_none_serves_claims() -> None:
    slow = gpu_node("s", mode="share", sizes=[80 * GIB], allocatable={"pods": "110"})
    found = explained(pod_with_claims("p", "c"), [claim("c", memory="16Gi")], [OTHER, slow])
    (remedy,) = found.changes
    assert remedy.change == 'a node gets the label gputile.io/claims: "true", and its GPU pods have ended'
    assert remedy.nodes == ["o"]
    assert not explained(pod_with_claims("p", "c"), [claim("c", memory="90Gi")], [OTHER, slow]).changes
    assert not explained(pod_with_claims("p", "c"), [claim("c", memory="16Gi")]).changes, "a node serves claims"
