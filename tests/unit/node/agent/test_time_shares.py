"""What containers get of their GPUs' time, by mode, label, configuration, annotation and priority."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, GpuTime
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TIME_POLICY_LABEL, TIME_WEIGHT_ANNOTATION, GpuTimePolicy, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.node_status import time_condition
from gputile.node.agent.time_shares import TimeShares, fallback, policy_of, share_of, time_shares
from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.arbiter.messages import Assignment, decode_line, encode_line
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.devicetable import hold

GPU = Gpu(0, "GPU-a", 10240)


def node(mode: Mode, labels: dict[str, str] | None = None, time: GpuTime | None = None) -> AllocationState:
    """A node with one GPU, and pods a (4 GiB, 30 %, weight 3, priority 7) and b (2 GiB, 60 %)."""
    configuration = Configuration(gpu_time=time or GpuTime(max_weight=10))
    admission = AllocationState(
        configuration,
        NodeConfig(Inventory((GPU,), mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024)),
        DeviceTable(),
    )
    admission.labels = labels or {}
    for name, mib, percent, annotations in (("a", 4, 30, {TIME_WEIGHT_ANNOTATION: "3"}), ("b", 2, 60, {})):
        core = {"core": percent} if mode is Mode.CORE_MEM else {}
        pod = simple_pod(name, container(mem=mib, asks=core), annotations=annotations)
        pod.metadata.uid, pod.spec.priority = name, 7 if name == "a" else None
        admission.pods[pod.key] = known_pod(pod, configuration)
        resource = GPU_CORE if mode is Mode.CORE_MEM else GPU_MEMORY
        devices = (ContainerDevices("main", Phase.APP, resource, ("GPU-a::0",), f"{name}-main"),)
        hold(admission, PodDevices(name, "default", name, 1024, mode.value, "default", 0, devices))
    return admission


def claims(found: TimeShares) -> dict[str, Share]:
    return {path: share for path, gpus in found.assignment.containers.items() for share in gpus.values()}


@pytest.mark.requirement("G4", "M4", "M5")
def test_weights_and_priorities_of_cgpu() -> None:
    found = time_shares(node(Mode.CGPU), "/d")
    assert claims(found) == {"/d/a-main": Share(3, priority=7), "/d/b-main": Share(1)}
    assert found.files["a-main"] == b"gputile-share 1\nquantum 30000\ncard GPU-a 750000\nend\n"
    assert decode_line(encode_line(found.assignment), Assignment) == found.assignment


@pytest.mark.requirement("G4", "M4", "M5")
def test_percentages_of_core_mem() -> None:
    found = time_shares(node(Mode.CORE_MEM, time=GpuTime(policy="weighted")), "/d")
    assert claims(found) == {"/d/a-main": Share(30, 300000, 300000), "/d/b-main": Share(60, 600000, 600000)}
    assert b"card GPU-a 600000\n" in found.files["b-main"]


@pytest.mark.requirement("G4", "M4", "M5")
def test_the_nodes_label_goes_before_the_configuration() -> None:
    found = time_shares(node(Mode.CGPU, {TIME_POLICY_LABEL: "0"}, GpuTime(policy="weak")), "/d")
    assert set(claims(found).values()) == {Share(1, WHOLE // 16, WHOLE // 16)}


@pytest.mark.requirement("G4", "M4", "M5")
def test_native_leaves_all_to_the_driver() -> None:
    found = time_shares(node(Mode.CGPU, {TIME_POLICY_LABEL: "native"}), "/d")
    assert found.assignment.containers == {}
    assert b"card GPU-a 1000000\n" in found.files["a-main"]


@pytest.mark.requirement("G4", "M4", "M5")
@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.MPS, Mode.EXCLUSIVE])
def test_no_turns_in_other_modes(mode: Mode) -> None:
    found = time_shares(node(mode), "/d")
    assert (found.assignment.containers, found.files) == ({}, {})


@pytest.mark.requirement("G4", "M4", "M5")
def test_a_wrong_weight_counts_as_one() -> None:
    admission = node(Mode.CGPU)
    known = admission.pods["default/a"]
    meta = msgspec.structs.replace(known.pod.metadata, annotations={TIME_WEIGHT_ANNOTATION: "0"})
    admission.pods["default/a"] = known_pod(msgspec.structs.replace(known.pod, metadata=meta), Configuration())
    assert claims(time_shares(admission, "/d"))["/d/a-main"].weight == 1


@pytest.mark.requirement("G4", "M4", "M5")
def test_a_label_that_is_not_valid_counts_for_nothing_and_says_so() -> None:
    labels = {TIME_POLICY_LABEL: "fairest"}
    assert policy_of(Mode.CGPU, labels, GpuTime(policy="4")) is GpuTimePolicy.WEAK
    assert policy_of(Mode.CORE_MEM, labels, GpuTime()) is GpuTimePolicy.FIXED
    condition = time_condition(labels)
    assert condition.status == "True"
    assert "weighted (2)" in condition.message
    assert time_condition({}).status == time_condition({TIME_POLICY_LABEL: "3"}).status == "False"


@pytest.mark.requirement("G4", "M4", "M5")
def test_shares_without_an_arbiter_add_up_to_the_gpu() -> None:
    """But for what ``average`` leaves free; under ``fixed`` and ``weak`` as far as the percentages do."""
    everybody = [(30, 2, 0), (20, 1, 5), (50, 1, 0)]
    for policy in (
        GpuTimePolicy.AVERAGE,
        GpuTimePolicy.PREEMPTIVE,
        GpuTimePolicy.WEIGHTED,
        GpuTimePolicy.FIXED,
        GpuTimePolicy.WEAK,
    ):
        shares = [share_of(policy, *claim, 16) for claim in everybody]
        assert 0 < sum(fallback(policy, share, sum(each.weight for each in shares)) for share in shares) <= WHOLE


@pytest.mark.requirement("G4", "M4", "M5")
def test_no_pod_weighs_more_than_its_namespace_may_whoever_wrote_it_g4() -> None:
    """Admission refuses it; a pod from before the limit, or past admission, gains nothing either."""

    def weight(time: GpuTime) -> int:
        return claims(time_shares(node(Mode.CGPU, time=time), "/d"))["/d/a-main"].weight

    assert weight(GpuTime()) == 1
    assert weight(GpuTime(max_weight=2)) == 2
    assert weight(GpuTime(namespace_max_weight={"default": 1000})) == 3
    assert weight(GpuTime(max_weight=1000, namespace_max_weight={"default": 1})) == 1


@pytest.mark.requirement("G4")
def test_an_init_container_takes_nothing_from_those_after_it() -> None:
    admission = node(Mode.CGPU)
    pod = simple_pod("c", container("main", mem=1), init=(container("init", mem=1),))
    admission.pods[pod.key] = known_pod(pod, admission.configuration)
    devices = (
        ContainerDevices("init", Phase.INIT, GPU_MEMORY, ("GPU-a::7",), "c-init"),
        ContainerDevices("main", Phase.APP, GPU_MEMORY, ("GPU-a::7",), "c-main"),
    )
    before = time_shares(admission, "/d").guaranteed
    hold(admission, PodDevices("c", "default", "c", 1024, "cgpu", "default", 0, devices))
    found = time_shares(admission, "/d").guaranteed
    lasting = [found[name]["GPU-a"] for name in (*before, "c-main")]
    assert WHOLE - len(lasting) <= sum(lasting) <= WHOLE
    assert found["c-init"]["GPU-a"] < found["c-main"]["GPU-a"], "the main container counts beside it"
