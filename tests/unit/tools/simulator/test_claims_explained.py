"""``explain`` says of pods with ResourceClaims what the nodes of claims lack, and what it cannot judge."""

from collections.abc import Sequence

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, PodResourceClaim
from gputile.api.resource_claims import ResourceClaim
from gputile.tools.simulator.explanation import PodExplanation, explain_pod
from tests.fakes.claimbuilders import claim, pod_with_claims, result
from tests.fakes.corebuilders import gpu_node

pytestmark = pytest.mark.requirement("B8", "B4")

GIB = 1024
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
