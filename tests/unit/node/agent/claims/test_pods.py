"""Which containers use a claim, and the annotations of their pod for existing tools."""

import json

import msgspec
import pytest

from gputile.api.core import PodResourceClaim, PodResourceClaimStatus
from gputile.api.well_known import ALLOCATION_ANNOTATION, CLAIMS_LABEL, MODE_LABEL, Mode
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.claims.prepare import (
    ClaimRefused,
    claim_corrections,
    containers_of,
    prepared_claim,
    with_containers,
)
from gputile.node.agent.device_table import PreparedClaim
from gputile.node.agent.holdings import replace_prepared_claims
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.mode import LabelError, asked_for
from gputile.node.agent.node_config import EffectiveMode
from tests.fakes.agentcluster import NODE
from tests.fakes.claims import Given, allocated, claiming_pod, claims_node, share
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import machine

MACHINE = machine([8192, 8192])


def row(state: AllocationState, name: str, *given: Given) -> PreparedClaim:
    """Prepare a claim of the pod ``pod``, and let it hold what it has."""
    found = prepared_claim(state, allocated(name, *given), NODE, 7)
    replace_prepared_claims(state, {**state.claims, found.uid: found})
    return found


def test_a_claim_from_a_template_is_known_by_the_pods_status() -> None:
    pod = claiming_pod("pod", {"main": ["a"]})
    pod.spec.resource_claims = (PodResourceClaim(name="my-a", resource_claim_template_name="t"),)
    pod.status.resource_claim_statuses = (PodResourceClaimStatus(name="my-a", resource_claim_name="pod-a-x7"),)
    assert [(each.name, names) for each, _, names in containers_of(pod)] == [("main", frozenset({"pod-a-x7"}))]


def test_a_container_is_told_what_it_shares_with_no_other_claim() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    a, b = row(state, "a", share(0, "2Gi")), row(state, "b", share(1, "2Gi"))
    apart = claiming_pod("pod", {"one": ["a"], "two": ["b"]})
    assert [
        each.devices[0].container for each in (with_containers(state, a, apart), with_containers(state, b, apart))
    ] == [
        "one",
        "two",
    ]
    with pytest.raises(ClaimRefused, match="container one uses the claims b and a"):
        with_containers(state, b, claiming_pod("pod", {"one": ["a", "b"]}))


def test_an_init_container_has_its_phase() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    a = row(state, "a", share(0, "2Gi"))
    pod = claiming_pod("pod", {"main": ["a"]})
    pod.spec.init_containers, pod.spec.containers = pod.spec.containers, (container("app", asks={}),)
    assert with_containers(state, a, pod).devices[0].phase is Phase.INIT


def test_another_pod_of_the_name_is_refused() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    a, pod = row(state, "a", share(0, "2Gi")), claiming_pod("pod", {"main": ["a"]})
    pod.metadata.uid = "another"
    for other in (pod, None):
        with pytest.raises(ClaimRefused, match="no longer exists"):
            with_containers(state, a, other)


@pytest.mark.requirement("B9")
def test_existing_tools_read_the_gpus_of_claims() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    row(state, "a", share(1, "2Gi"))
    pod = claiming_pod("pod", {"main": ["a"]})
    state.pods[pod.key] = known_pod(pod, state.configuration)
    (correction,) = claim_corrections(state)
    assert correction.annotations == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "8",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":2}}',
        "gputile.io/memory-unit-mib": "1024",
    }
    assert ALLOCATION_ANNOTATION not in correction.annotations
    told = msgspec.structs.replace(pod.metadata, annotations={k: str(v) for k, v in correction.annotations.items()})
    state.pods[pod.key] = known_pod(msgspec.structs.replace(pod, metadata=told), state.configuration)
    assert claim_corrections(state) == []


@pytest.mark.requirement("B9")
def test_annotations_sum_several_claims_by_container() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    row(state, "a", share(0, "2Gi"))
    row(state, "b", share(1, "3Gi"), share(0, "1Gi"))
    pod = claiming_pod("pod", {"one": ["a"], "none": [], "two": ["b"]})
    state.pods[pod.key] = known_pod(pod, state.configuration)
    (correction,) = claim_corrections(state)
    told = json.loads(correction.annotations["scheduler.framework.gpushare.allocation"] or "")
    assert told == {"0": {"0": 2}, "2": {"0": 1, "1": 3}}
    assert "ALIYUN_COM_GPU_MEM_IDX" not in correction.annotations


def test_whole_gpus_and_deleted_pods_get_no_annotations() -> None:
    whole = claims_node(Mode.EXCLUSIVE, MACHINE)
    row(whole, "a", Given("gpu-0", {}))
    pod = claiming_pod("pod", {"main": ["a"]})
    whole.pods[pod.key] = known_pod(pod, whole.configuration)
    shared = claims_node(Mode.CGPU, MACHINE)
    row(shared, "a", share(0, "1Gi"))
    assert [claim_corrections(whole), claim_corrections(shared)] == [[], []]


def test_the_label_goes_with_the_modes_in_which_kube_scheduler_can_allocate() -> None:
    assert asked_for({CLAIMS_LABEL: "true", MODE_LABEL: "cgpu"}) == EffectiveMode(Mode.CGPU, 0, claims=True)
    assert asked_for({CLAIMS_LABEL: "false"}) == EffectiveMode(Mode.EXCLUSIVE, 0)
    for labels, text in (
        ({MODE_LABEL: "share", CLAIMS_LABEL: "true"}, "trust groups"),
        ({"gputile.io/sharing": "time-slicing", "gputile.io/replicas": "2", CLAIMS_LABEL: "true"}, "time-slicing"),
        ({CLAIMS_LABEL: "yes"}, "valid are true, false"),
    ):
        with pytest.raises(LabelError, match=text):
            asked_for(labels)
