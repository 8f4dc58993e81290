"""Another device plugin on the node is noticed."""

from fnmatch import fnmatch

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeStatus, Pod
from gputile.api.well_known import WHOLE_GPU, Mode
from gputile.api.workloads import PodOnNode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.known_pods import apply_pod
from gputile.node.agent.mode import SOCKET_PATTERNS, find_other_plugin, resources_of_others
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.node_status import other_plugin_condition
from gputile.node.nvml.probe import ProbedGpu, ProbedMachine
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

UUID = "GPU-5f0b1b2c-3e3d-4b7a-9f43-0c6d3f1a2b3c"
MACHINE = ProbedMachine((ProbedGpu(0, UUID, "Tesla T4", 15360, "00000000:3B:00.0"),))
WITH_GPUS = Node(status=NodeStatus(allocatable={WHOLE_GPU: "4"}))


def evidence_of(
    *sockets: str,
    node: Node | None = None,
    pod: Pod | None = None,
    registered: dict[str, bytes] | None = None,
    served_before: bool = True,
) -> str:
    config = NodeConfig(Inventory(gpus=()), EffectiveMode(Mode.EXCLUSIVE, 1024))
    state = AllocationState(Configuration(), config, node=node or Node(), of_other_plugins=registered or {})
    state.resources = (WHOLE_GPU,) if served_before else ()
    if pod is not None:
        apply_pod(state.pods, pod, state.configuration)
    return find_other_plugin(state, sockets, MACHINE) or ""


def test_a_socket_that_answers_is() -> None:
    evidence = evidence_of("nvidia-gpu.sock")
    assert "nvidia-gpu.sock" in evidence
    assert other_plugin_condition(evidence).status == "True"
    assert evidence in other_plugin_condition(evidence).message


@pytest.mark.parametrize(
    ("socket", "of_gpus"),
    [
        ("nvidia.sock", True),
        ("nvidia-gpu.sock", True),
        ("nvidia-mig-1g.5gb.sock", True),
        ("nvidiaGPU-1700000000.sock", True),
        ("aliyungpushare.sock", True),
        ("gputile-gpu-mem-a1b2c3.sock", False),
        ("kubelet.sock", False),
        ("rdma-hca.sock", False),
    ],
)
def test_which_sockets_are_of_plugins_for_gpus(socket: str, of_gpus: bool) -> None:
    assert any(fnmatch(socket, pattern) for pattern in SOCKET_PATTERNS) == of_gpus


def test_gpus_that_gputile_never_offered_are() -> None:
    assert "4 nvidia.com/gpu" in evidence_of(node=WITH_GPUS, served_before=False)
    assert not evidence_of(node=WITH_GPUS)


@pytest.mark.requirement("G6")
@pytest.mark.parametrize(("core", "found"), [("100", True), ("0", False)])
def test_koordinator_has_no_plugin_and_is_known_by_its_resource(core: str, *, found: bool) -> None:
    node = Node(status=NodeStatus(allocatable={"koordinator.sh/gpu-core": core}))
    assert ("Koordinator" in evidence_of(node=node)) == found


def pod_of(labels: dict[str, str], phase: str = "Running", path: str = "/var/lib/kubelet/device-plugins") -> PodOnNode:
    made = simple_pod("theirs", container(), labels=labels)
    body = {"spec": {"volumes": [{"hostPath": {"path": path}}]}, "status": {"phase": phase}}
    return msgspec.structs.replace(msgspec.convert(body, PodOnNode), metadata=made.metadata)


@pytest.mark.parametrize(
    ("phase", "path", "found"),
    [
        ("Running", "/var/lib/k0s/kubelet/device-plugins", True),
        ("Pending", "/var/lib/kubelet", False),
        ("Failed", "/var/lib/kubelet", False),
        ("Running", "/data", False),  # anyone can set the label
    ],
)
def test_a_plugin_pod_is_while_it_runs(phase: str, path: str, *, found: bool) -> None:
    pod = pod_of({"name": "nvidia-device-plugin-ds"}, phase, path)
    assert bool(evidence_of(pod=pod, served_before=False)) == found


@pytest.mark.parametrize(
    "label",
    [
        {"component": "gpushare-device-plugin", "app": "gpushare"},
        {"app.kubernetes.io/component": "hami-device-plugin"},
        {"app.kubernetes.io/name": "dra-driver-nvidia-gpu", "dra-driver-nvidia-gpu-component": "kubelet-plugin"},
    ],
    ids=["gpushare", "hami", "NVIDIA's DRA driver"],
)
def test_plugins_of_other_projects_are_known_by_their_pods(label: dict[str, str]) -> None:
    assert "theirs belongs to it" in evidence_of(pod=pod_of(label))


@pytest.mark.requirement("G6")
@pytest.mark.parametrize(
    ("resource", "ids", "allocatable", "found"),
    [
        pytest.param("volcano.sh/vgpu-number", f'["{UUID}-0","{UUID}-1"]', {}, True, id="just registered"),
        pytest.param("nvidia.com/gpu.shared", f'["{UUID}::0"]', {"nvidia.com/gpu.shared": "1"}, True, id="renamed"),
        pytest.param("nvidia.com/gpu.shared", f'["{UUID}::0"]', {"nvidia.com/gpu.shared": "0"}, False, id="gone"),
        pytest.param("nvidia.com/hostdev", '["0000:05:00.0"]', {"nvidia.com/hostdev": "1"}, False, id="network"),
    ],
)
def test_a_plugin_is_known_by_the_gpus_that_it_registers(
    resource: str, ids: str, allocatable: dict[str, str | int | float], *, found: bool
) -> None:
    node = Node(status=NodeStatus(allocatable=allocatable))
    others = resources_of_others({resource: ids.encode()}, [UUID], node)
    assert (others == [resource]) == found
    assert (resource in evidence_of(node=node, registered={resource: ids.encode()})) == found
