"""What a claim gets when it is prepared, and what is refused."""

import json

import msgspec
import pytest

from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.cdi import cdi_file
from gputile.node.agent.claims.prepare import ClaimRefused, answer_of, prepared_claim, request_name
from gputile.node.agent.device_table import ContainerDevices, PodDevices, PreparedClaim, part_id
from gputile.node.agent.holdings import replace_prepared_claims
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.metrics import containers_of, instances_of_pod, memory_and_compute
from gputile.node.agent.node_config import Sharing
from gputile.node.agent.rules import Occupied, rules_of
from gputile.node.agent.time_shares import time_shares
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.nvml.probe import MigInstance
from tests.fakes.agentcluster import NODE
from tests.fakes.claims import Given, allocated, claiming_pod, claims_node, share
from tests.fakes.devicetable import hold
from tests.integration.agent.scene import machine

MACHINE = machine([8192, 8192])


def prepared(state: AllocationState, claim: ResourceClaim) -> PreparedClaim:
    found = prepared_claim(state, claim, NODE, 7)
    rules_of(state).check_others(found)
    return found


def refusal(state: AllocationState, claim: ResourceClaim) -> str:
    with pytest.raises((ClaimRefused, Occupied)) as caught:
        prepared(state, claim)
    return str(caught.value)


def test_a_share_is_what_kube_scheduler_has_counted() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    found = prepared(state, allocated("c", share(1, "2Gi")))
    assert found.shares == (GpuShare("GPU-1", 1, 2048),)
    assert (found.key, found.owner, found.pod_uid) == ("default/pod", "uid-pod", "uid-pod")


def test_the_environment_is_what_existing_programs_read() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    variables = answer_of(state.node_config, prepared(state, allocated("c", share(1, "2Gi"))), 0).environment
    assert {name: variables[f"ALIYUN_COM_GPU_MEM_{name}"] for name in ("CONTAINER", "POD", "DEV", "IDX", "UNIT")} == {
        "CONTAINER": "2",
        "POD": "2",
        "DEV": "8",
        "IDX": "1",
        "UNIT": "1024MiB",
    }
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_client_of_mps_is_told_its_daemon_and_its_limit() -> None:
    state = claims_node(Mode.MPS, MACHINE)
    variables = answer_of(state.node_config, prepared(state, allocated("c", share(0, "3Gi"))), 30).environment
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"


def test_gpus_are_in_the_order_in_which_cuda_numbers_them_whichever_request_got_which() -> None:
    """The first request found room on GPU 1 only. The daemon of both is named, and limits are counted, by index."""
    state = claims_node(Mode.MPS, MACHINE)
    found = prepared(state, allocated("c", share(1, "6Gi"), share(0, "1Gi")))
    assert [(each.index, each.mib) for each in found.shares] == [(0, 1024), (1, 6144)]
    answer = answer_of(state.node_config, found, 0)
    assert answer.uuids == ("GPU-0", "GPU-1")
    assert answer.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M,1=6144M"
    assert answer.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert answer.environment["ALIYUN_COM_GPU_MEM_POD"] == answer.environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "7"


@pytest.mark.parametrize(
    ("mode", "given", "mib", "percent"),
    [
        (Mode.CORE_MEM, share(0, "2Gi", cores="30"), 2048, 30),
        (Mode.CORE_MEM, share(0, "2Gi"), 2048, 100),
        (Mode.CGPU, share(0, "1500M"), 1431, 0),
        (Mode.CGPU, Given("gpu-0", {}), 8192, 0),
        (Mode.EXCLUSIVE, Given("gpu-0", {}), 8192, 100),
        (Mode.TOPOLOGY, Given("gpu-0", {"memory": "1Gi"}), 8192, 100),
    ],
)
def test_amounts_by_mode(mode: Mode, given: Given, mib: int, percent: int) -> None:
    (found,) = prepared(claims_node(mode, MACHINE), allocated("c", given)).shares
    assert (found.mib, found.percent) == (mib, percent)


def test_the_limit_of_two_requests_on_one_gpu_is_their_sum() -> None:
    one = prepared(claims_node(Mode.CGPU, MACHINE), allocated("c", share(0, "2Gi"), share(0, "3Gi")))
    assert [(each.index, each.mib) for each in one.shares] == [(0, 5120)]


def test_an_alternative_is_answered_by_the_name_of_its_request() -> None:
    """A container names the request. The kubelet compares the names, and would start it without the claim's limits."""
    claim = allocated("c", share(0, "1Gi"))
    (chosen,) = claim.gpus
    assert request_name(msgspec.structs.replace(chosen, request="gpu/large")) == "gpu"


def test_devices_of_other_drivers_are_theirs() -> None:
    found = prepared(
        claims_node(Mode.CGPU, MACHINE),
        allocated("c", Given("nic-0", {}, driver="net.example", pool="elsewhere"), share(0, "1Gi")),
    )
    assert [each.uuid for each in found.shares] == ["GPU-0"]


def test_a_mig_instance_is_one_claims_alone() -> None:
    instances = [MigInstance("MIG-1", "1g.10gb", 9728, 3, 0), MigInstance("MIG-2", "1g.10gb", 9728, 4, 0)]
    state = claims_node(Mode.EXCLUSIVE, machine([81920], {0: instances}), sharing=Sharing.MIG)
    first = prepared(state, allocated("c", Given("gpu-0-mig-1", {})))
    assert first.shares == (GpuShare("MIG-1", 0, 9728, 100),)
    replace_prepared_claims(state, {first.uid: first})
    assert prepared(state, allocated("d", Given("gpu-0-mig-2", {}))).gpus == {"MIG-2"}
    assert "used by pod default/pod" in refusal(state, allocated("d", Given("gpu-0-mig-1", {})))


def test_two_instances_of_one_gpu_count_as_two() -> None:
    instances = [MigInstance("MIG-1", "1g.10gb", 9728, 3, 0), MigInstance("MIG-2", "1g.10gb", 9728, 4, 0)]
    state = claims_node(Mode.EXCLUSIVE, machine([81920], {0: instances}), sharing=Sharing.MIG)
    both = prepared(state, allocated("c", Given("gpu-0-mig-1", {}), Given("gpu-0-mig-2", {})))
    replace_prepared_claims(state, {both.uid: both})
    assert memory_and_compute(state.node_config, both) == {0: (2 * 9728, 100)}
    assert [each.uuid for each in instances_of_pod(state.node_config, both)] == ["MIG-1", "MIG-2"]
    pod = claiming_pod("pod", {"main": ("c",)})
    state.pods[pod.key] = known_pod(pod, state.configuration)
    ((_, _, parts),) = containers_of(state)
    assert parts == [("", "0", 2 * 9728 << 20, 2 * 9728 << 20)]


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (allocated("c"), "no GPU is allocated"),
        (allocated("c", Given("nic-0", {}, driver="net.example")), "no GPU is allocated"),
        (allocated("c", share(0, "1Gi"), pods=()), "reserved for 0 pods"),
        (allocated("c", share(0, "1Gi"), pods=("a", "b")), "reserved for 2 pods"),
        (allocated("c", Given("gpu-0", {"memory": "1Gi"}, pool="other")), "belongs to node other"),
        (allocated("c", Given("gpu-0", {"memory": "1Gi"}, admin=True)), "adminAccess"),
        (allocated("c", share(7, "1Gi")), "gpu-7 no longer exists"),
        (allocated("c", share(0, "9Gi")), "no part of 8192 MiB"),
        (allocated("c", share(0, "-1Gi")), "no part"),
        (allocated("c", share(0, "0")), "no part"),
        (allocated("c", share(0, "lots")), "no part"),
        (allocated("c", share(0, "5Gi"), share(0, "5Gi")), "twice"),
    ],
)
def test_what_is_refused(claim: ResourceClaim, text: str) -> None:
    assert text in refusal(claims_node(Mode.CGPU, MACHINE), claim)


@pytest.mark.parametrize("cores", ["101", "0", "-5", "lots", "1e300", ""])
def test_compute_that_is_none_or_more_than_there_is_is_refused(cores: str) -> None:
    """A limit of 0 percent would be no limit."""
    assert "no part" in refusal(claims_node(Mode.CORE_MEM, MACHINE), allocated("c", share(0, "1Gi", cores=cores)))


def test_a_node_of_extended_resources_prepares_nothing() -> None:
    state = claims_node(Mode.CGPU, MACHINE, claims=False)
    assert "extended resources" in refusal(state, allocated("c", share(0, "1Gi")))
    assert state.node_config.advertises(GPU_MEMORY)
    assert not claims_node(Mode.CGPU, MACHINE).node_config.advertises(GPU_MEMORY)


def held(state: AllocationState, name: str, given: Given) -> PreparedClaim:
    uid = f"uid-{name}"
    found = prepared(state, allocated(name, given, pods=(name,)))
    replace_prepared_claims(state, {**state.claims, uid: found})
    return found


def test_what_others_hold_is_counted_and_they_are_named() -> None:
    state = claims_node(Mode.CORE_MEM, MACHINE)
    held(state, "a", share(0, "5Gi", cores="40"))
    held(state, "b", share(1, "8Gi", cores="10"))
    assert prepared(state, allocated("c", share(0, "3Gi", cores="60")))
    text = refusal(state, allocated("c", share(0, "4Gi", cores="5")))
    assert text == "GPU 0 has 3072 of 8192 MiB left, but the pod needs 4096; used by default/a"
    assert "would need 105 of 100 percent of its compute; used by default/a" in refusal(
        state, allocated("c", share(0, "1Gi", cores="65"))
    )


def test_pods_by_device_plugin_are_counted_too() -> None:
    """Those of before, while a claim that was allocated by hand comes."""
    state = claims_node(Mode.CGPU, MACHINE)
    ids = tuple(part_id("GPU-0", number) for number in range(6))
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ids, "old-main")
    hold(state, PodDevices("old", "default", "old", 1024, "cgpu", "default", 0, (devices,)))
    assert "used by default/old" in refusal(state, allocated("c", share(0, "3Gi")))


def test_as_many_pods_share_a_gpu_as_may() -> None:
    state = claims_node(Mode.CGPU, MACHINE)
    for number in range(state.configuration.max_pods_per_gpu):
        held(state, f"p{number}", share(0, "1Mi"))
    assert "the most that a GPU may hold" in refusal(state, allocated("c", share(0, "1Mi")))


def test_a_whole_gpu_is_held_by_one() -> None:
    state = claims_node(Mode.EXCLUSIVE, MACHINE)
    held(state, "a", Given("gpu-0", {}))
    assert "GPU 0 is used by pod default/a" in refusal(state, allocated("c", Given("gpu-0", {})))
    assert prepared(state, allocated("c", Given("gpu-1", {})))


def test_a_claim_counts_wherever_pods_do() -> None:
    """In free memory, metrics, shares of time, and by the pod that it is of."""
    state = claims_node(Mode.CORE_MEM, MACHINE)
    found = held(state, "a", share(0, "2Gi", cores="30"))
    assert state.device_table.mib("GPU-0") == 2048
    assert memory_and_compute(state.node_config, found) == {0: (2048, 30)}
    assert found.directory in state.directories()
    ((directory, gpus),) = time_shares(state, "/d").assignment.containers.items()
    assert directory == f"/d/{found.directory}"
    assert {uuid: share.guarantee for uuid, share in gpus.items()} == {"GPU-0": 300_000}


def test_the_cdi_file_carries_limits_into_containers() -> None:
    mounts = [
        pb.Mount(container_path="/etc/x", host_path="/host/x", read_only=True),
        pb.Mount(container_path="/tmp/y", host_path="/host/y"),
    ]
    text = json.loads(cdi_file("uid-c", pb.ContainerAllocateResponse(envs={"A": "1"}, mounts=mounts)))
    assert (text["kind"], text["cdiVersion"]) == ("gputile.io/claim", "0.5.0")
    (device,) = text["devices"]
    assert device["name"] == "uid-c"
    assert device["containerEdits"]["env"] == ["A=1"]
    assert [each["options"][-1] for each in device["containerEdits"]["mounts"]] == ["ro", "rw"]
