"""Pods with ResourceClaims are placed as kube-scheduler will, and what cannot be judged is never said to fit."""

import time
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.tools.simulator.claims import MIXED_GPUS
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import load_scenario
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from gputile.tools.simulator.what_if import without_nodes
from gputile.tools.simulator.workloads import expand
from tests.fakes.claimbuilders import claim, result
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B8", "B4")

GANGS = Configuration(admission=AdmissionConfiguration(gangs=True))
EXAMPLE = str(Path(__file__).parents[4] / "examples" / "claims.yaml")
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: shares, mode: %s, labels: {gputile.io/claims: "true"}, gpus: {count: 2, memory: 15GiB}, taints: []}
- {name: wholes, labels: {gputile.io/claims: "true"}, gpus: {count: 1, memory: 15GiB}}
- {name: others, mode: cgpu, gpus: {count: 8, memory: 80GiB}, taints: []}
"""
POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: %s%s}
spec:
  resourceClaims: [%s]
  containers: [{name: main, image: i, resources: {claims: [{name: gpu}]%s}}]
"""
CLAIM = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim%s
metadata: {name: c}
spec: %s
"""
REQUEST = "{devices: {requests: [{name: gpu, exactly: {deviceClassName: gputile-share, %s}}]%s}}"
NAMED = "{name: gpu, resourceClaimName: c}"
TEMPLATE = "{name: gpu, resourceClaimTemplateName: c}"


def of(asked: str, more: str = "", *, template: bool = False) -> str:
    spec = REQUEST % (asked, more)
    return CLAIM % (("Template", f"{{spec: {spec}}}") if template else ("", spec))


def gib(amount: int, cores: str = "") -> str:
    return f"capacity: {{requests: {{memory: {amount}Gi{cores}}}}}"


def pod(name: str, claim: str = NAMED, *, limits: str = "", labels: str = "") -> str:
    return POD % (name, f", labels: {labels}" if labels else "", claim, f", limits: {limits}" if limits else "")


def decided(tmp_path: Path, *texts: str, mode: str = "cgpu", files: tuple[str, ...] = ()) -> list[PodOutcome]:
    cluster, asked = tmp_path / "cluster.yaml", tmp_path / "pods.yaml"
    cluster.write_text(CLUSTER % mode)
    asked.write_text("".join(texts))
    named = [*files, *([str(asked)] if texts else [])]
    return list(Simulation(GANGS).run(load_scenario([str(cluster)], named), time.time_ns))


def gpus(outcome: PodOutcome) -> tuple[str | None, list[tuple[int, int, int]]]:
    shares = outcome.allocation.gpus if outcome.allocation is not None else ()
    return outcome.node, [(share.index, share.mib, share.percent) for share in shares]


def test_the_example_gets_a_share_and_a_whole_gpu(tmp_path: Path) -> None:
    share, whole = decided(tmp_path, files=(EXAMPLE,))
    assert gpus(share) == ("shares", [(0, 8 * 1024, 0)])
    assert gpus(whole) == ("wholes", [(0, 15 * 1024, 100)])


def test_each_pod_of_a_template_gets_the_first_gpu_that_fits(tmp_path: Path) -> None:
    pods = [pod(f"p{number}", TEMPLATE) for number in range(5)]
    found = decided(tmp_path, of(gib(7), template=True), *pods)
    assert [gpus(each)[1] for each in found[:4]] == [[(index, 7 * 1024, 0)] for index in (0, 0, 1, 1)]
    assert found[4].node is None
    assert "has 1 GiB of 15 GiB free" in found[4].reason


def test_requests_of_a_claim_are_allocated_one_after_the_other(tmp_path: Path) -> None:
    (found,) = decided(tmp_path, of(f"count: 3, {gib(6)}"), pod("p"))
    assert gpus(found) == ("shares", [(0, 6144, 0), (0, 6144, 0), (1, 6144, 0)])
    (refused,) = decided(tmp_path, of(f"count: 5, {gib(6)}"), pod("p"))
    assert refused.node is None


def test_a_claim_is_for_one_pod(tmp_path: Path) -> None:
    first, second = decided(tmp_path, of(gib(1)), pod("p"), pod("q"))
    assert first.node == "shares"
    assert second.node is None
    assert "claim c is reserved for pod p" in second.reason


def test_no_node_gives_its_gpus_both_ways(tmp_path: Path) -> None:
    (found,) = decided(tmp_path, of(gib(1)), pod("p", limits="{aliyun.com/gpu-mem: 1}"))
    assert (found.node, found.reason) == (None, MIXED_GPUS)


def test_a_gang_does_not_ask_by_claims(tmp_path: Path) -> None:
    """kube-scheduler would allocate for each of its pods alone."""
    gang = f"{{{GANG_NAME_LABEL}: g, {GANG_SIZE_LABEL}: '2'}}"
    gated = pod("p", labels=gang).replace("spec:", f"spec:\n  schedulingGates: [{{name: {GANG_GATE}}}]")
    (found,) = decided(tmp_path, of(gib(1)), gated)
    assert found.node is None
    assert "claims are allocated pod by pod" in found.reason


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("", "there is no ResourceClaim default/c of resource.k8s.io/v1"),
        (of(gib(1)).replace("gputile-share", "gpu.nvidia.com"), "devices of other drivers"),
        (of(f"selectors: [{{cel: {{expression: 'true'}}}}], {gib(1)}"), "selectors: kube-scheduler evaluates"),
        (of(gib(1), ", constraints: [{matchAttribute: gpu.gputile.io/uuid}]"), "constraints: only"),
        (of(gib(1), ", constraints: [{distinctAttribute: gpu.gputile.io/model}]"), "constraints: only"),
        (CLAIM % ("", "{devices: {requests: [{name: gpu, firstAvailable: []}]}}"), "one of the alternatives"),
        (CLAIM % ("", "{devices: {}}"), "requests no device"),
        (of("count: 1"), "without memory it gets all"),
        (of(gib(1)).replace("capacity", "capacities"), "capacities: unknown field; did you mean capacity"),
        (of(gib(1), template=True).replace("requests: [", "request: ["), "request: unknown field; did you mean"),
    ],
)
def test_claims_that_cannot_be_judged_are_errors(tmp_path: Path, claim: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        decided(tmp_path, claim, pod("p"))


def test_a_claim_that_cannot_be_judged_is_left_out_where_people_say_so(tmp_path: Path) -> None:
    expansion = expand(load_text(tmp_path, pod("p")), [], Intake(ignore_unknown=True))
    assert [each.spec.resource_claims for each in expansion.pods] == [()]
    assert "ignored: there is no ResourceClaim default/c of resource.k8s.io/v1" in expansion.notes[0].text


def test_the_label_does_not_go_with_mode_share(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="it is invalid in mode share"):
        decided(tmp_path, of(gib(1)), pod("p"), mode="share")


def test_pods_of_a_node_that_leaves_get_gpus_of_another(tmp_path: Path) -> None:
    """A claim's allocation goes with the node of its pod."""
    cluster, asked = tmp_path / "cluster.yaml", tmp_path / "pods.yaml"
    cluster.write_text((CLUSTER % "cgpu").replace("name: shares,", "name: shares, count: 2,"))
    asked.write_text(of(gib(1)) + pod("p"))
    scenario = load_scenario([str(cluster)], [str(asked)])
    scenario.claims.claims["default/c"] = claim("c", result("shares-1", 0, memory="1Gi"), pods=["p"], memory="1Gi")
    without_nodes(scenario, ["shares-1"])
    (found,) = Simulation(GANGS).run(scenario, time.time_ns)
    assert gpus(found) == ("shares-2", [(0, 1024, 0)])
