"""What Prometheus is told of the node's GPUs and of the containers on them."""

import fcntl
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from native.layouts import USAGE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import GPU_MEMORY, WHOLE_GPU, Mode
from gputile.api.workloads import (
    ContainerEnd,
    PodOnNode,
    PodSpecOnNode,
    PodStatusOnNode,
    StartedContainer,
    StartedContainerState,
)
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices, part_id
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.metrics import NodeMetrics
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing, node_config_of
from gputile.node.arbiter.messages import Spent
from gputile.node.native_layouts import USAGE_BYTES, USAGE_LOCK_SLOTS, USAGE_MAGIC
from gputile.node.nvml.gpu_health import Examined, Health
from gputile.node.nvml.gpu_monitor import GpuMonitor, Observation
from gputile.node.nvml.probe import GpuReading, Mig, MigInstance, ProbedGpu, ProbedMachine
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.devicetable import hold, release

pytestmark = pytest.mark.requirement("B7")

MIB = 1 << 20
POD = "8e9b6a5c-4f0e-4a0a-9d3e-0d3c5a1b2c3d"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Monitor(GpuMonitor):
    """Sees two GPUs, and what the test says that they measure."""

    seen: Observation = field(
        default_factory=lambda: Observation(
            ProbedMachine(tuple(ProbedGpu(i, f"GPU-{i}", "Tesla T4", 10240, f"0:{i}") for i in range(2))), Health()
        )
    )
    readings: tuple[GpuReading, ...] = ()
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def step(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        pass


class Node:
    """A node with two GPUs in ``mode``, and a pod ``a`` whose container ``main`` has 4 units of GPU 1."""

    def __init__(self, tmp_path: Path, mode: Mode, containers: tuple[str, ...] = ("main",)) -> None:
        gpus = tuple(Gpu(i, f"GPU-{i}", 10240) for i in range(2))
        config = NodeConfig(Inventory(gpus, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
        self.state = AllocationState(Configuration(), config, DeviceTable())
        resource = GPU_MEMORY if mode.shared else WHOLE_GPU
        parts = tuple(
            ContainerDevices(
                name, Phase.APP, resource, memory_ids(10 * i) if mode.shared else ("GPU-1",), f"{POD}-{name}"
            )
            for i, name in enumerate(containers)
        )
        asked = (container(name, mem=4) if mode.shared else container(name, asks={WHOLE_GPU: 1}) for name in containers)
        pod = simple_pod("a", *asked)
        pod.metadata.uid = POD
        self.put(pod)
        hold(self.state, PodDevices(POD, "default", "a", 1024, mode.value, "default", 0, parts))
        self.monitor, self.usage = Monitor(), UsageFiles(tmp_path / "usage")
        self.usage.directory.mkdir()
        self.registry = CollectorRegistry()
        self.spent: dict[tuple[str, str], Spent] = {}
        self.metrics = NodeMetrics(self.state, self.monitor, self.usage, lambda: self.spent)
        self.registry.register(self.metrics)

    def put(self, pod: Pod) -> None:
        self.state.pods[pod.key] = known_pod(pod, self.state.configuration)

    def text(self) -> str:
        self.metrics.refresh(self.state)
        return generate_latest(self.registry).decode()

    def samples(self) -> Samples:
        return {
            (sample.name.removeprefix("gputile_agent_"), frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }


def labels(gpu: int = 1, container: str = "main") -> frozenset[tuple[str, str]]:
    return frozenset({"namespace": "default", "pod": "a", "container": container, "gpu": str(gpu)}.items())


def of(gpu: int, **more: str) -> frozenset[tuple[str, str]]:
    return frozenset({"gpu": str(gpu), **more}.items())


def counted(path: Path, used: int, peak: int, refused: int) -> int:
    """Write what a library counts; return the open file that keeps its slot locked."""
    content = bytearray(USAGE_BYTES)
    struct.pack_into("<IIII", content, 0, USAGE_MAGIC, 1, 1, 1)
    for name, value in (("used", used), ("peak", peak), ("refused", refused)):
        struct.pack_into("<Q", content, USAGE.offsets[name], value)
    path.write_bytes(content)
    return lock_slot(path)


def lock_slot(path: Path) -> int:
    file = os.open(path, os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS, 1, 0))
    return file


def test_an_isolated_container_is_told_as_its_library_counts_it(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    file = counted(node.usage.path(f"{POD}-main"), 300 * MIB, 500 * MIB, 3)
    try:
        found = node.samples()
    finally:
        os.close(file)
    assert found["container_memory_limit_bytes", labels()] == 4096 * MIB
    assert found["container_memory_used_bytes", labels()] == 300 * MIB
    assert found["container_memory_peak_bytes", labels()] == 500 * MIB
    assert found["container_allocations_refused_total", labels()] == 3
    assert found["gpu_time_share_ratio", labels()] == 1
    assert node.samples()["container_memory_used_bytes", labels()] == 0, "its process is gone"


def test_no_container_has_more_of_a_gpu_than_there_is(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    file = counted(node.usage.path(f"{POD}-main"), 2**64 - 1, 2**64 - 1, 0)
    found = node.samples()
    os.close(file)
    assert found["container_memory_used_bytes", labels()] == 10240 * MIB
    assert found["container_memory_peak_bytes", labels()] == 10240 * MIB


def test_gpus_and_node(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    node.monitor.readings = (GpuReading("GPU-0", 5 * MIB, 50, 61, 70.5, 4, 1),)
    node.monitor.xids = {("GPU-0", 79): 2}
    seen = node.monitor.seen
    node.monitor.seen = Observation(seen.machine, seen.health.after([Examined("GPU-0", "gone")], 0.0))
    found = node.samples()
    assert found["gpu_info", of(1, uuid="GPU-1", model="Tesla T4")] == 1
    assert found["gpu_memory_bytes", of(1)] == 10240 * MIB
    assert (found["gpu_memory_booked_bytes", of(0)], found["gpu_memory_booked_bytes", of(1)]) == (0, 4096 * MIB)
    assert (found["gpu_pods", of(0)], found["gpu_pods", of(1)]) == (0, 1)
    assert (found["gpu_healthy", of(0)], found["gpu_healthy", of(1)]) == (0, 1)
    assert found["gpu_memory_used_bytes", of(0)] == 5 * MIB
    assert ("gpu_memory_used_bytes", of(1)) not in found
    assert found["gpu_utilization_ratio", of(0)] == 0.5
    assert found["gpu_temperature_celsius", of(0)] == 61
    assert found["gpu_power_watts", of(0)] == 70.5
    assert found["gpu_ecc_errors_total", of(0, kind="uncorrected")] == 1
    assert found["gpu_xids_total", of(0, uuid="GPU-0", xid="79")] == 2
    (info,) = (dict(names) for name, names in found if name == "node_info")
    assert (info["mode"], info["unit_mib"], info["gpu_time_policy"]) == ("cgpu", "1024", "weighted")


def test_a_scrape_of_a_full_node_is_small(tmp_path: Path) -> None:
    """200 pods on a node, isolated ones, which have the most series: less than 200 kB, as no compression makes it."""
    node, name = Node(tmp_path, Mode.CGPU), "inference-7d9c5b8f6d-00000"
    node.spent = {(f"{POD}-main", "GPU-1"): Spent(12345_678901234, 2345_678901234)}
    file = counted(node.usage.path(f"{POD}-main"), 1234567 * 512, 1234567 * 512, 0)
    lines = node.text().splitlines()
    os.close(file)
    of_pod = [line for line in lines if 'pod="a"' in line]
    assert len(of_pod) == 7
    assert 200 * sum(len(line) + len(name) for line in of_pod) + sum(map(len, lines)) < 200_000


@pytest.mark.requirement("G4", "M4", "M5")
def test_time_used_is_named_by_pod_and_container_and_what_is_gone_is_left_out(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    node.spent = {(f"{POD}-main", "GPU-1"): Spent(1_500_000_000, 250_000_000), ("of-nobody", "GPU-1"): Spent(7)}
    found = {names: value for names, value in node.samples().items() if "gpu_time_seconds" in names[0]}
    assert found == {("gpu_time_seconds_total", labels()): 1.5}
    assert node.samples()["gpu_wait_seconds_total", labels()] == 0.25


def put_devices(node: Node, uid: str, name: str = "a", *devices: ContainerDevices) -> None:
    hold(node.state, PodDevices(uid, "default", name, 1024, "cgpu", "default", 0, devices))


OTHER = "11111111-4f0e-4a0a-9d3e-0d3c5a1b2c3d"


def memory_ids(first: int, count: int = 4) -> tuple[str, ...]:
    return tuple(part_id("GPU-1", number) for number in range(first, first + count))


def test_a_pod_made_anew_under_its_name_has_one_series(tmp_path: Path) -> None:
    """Prometheus would keep the first of two equal ones, whichever that is."""
    node = Node(tmp_path, Mode.CGPU)
    put_devices(node, OTHER, "a", ContainerDevices("main", Phase.APP, GPU_MEMORY, memory_ids(50, 2), f"{OTHER}-main"))
    series = [line.rpartition(" ") for line in node.text().splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in series}) == len(series)
    limits = [value for name, _, value in series if name.startswith("gputile_agent_container_memory_limit_bytes")]
    assert list(map(float, limits)) == [4096 * MIB], "the pod's that has the name"
    assert node.samples()["gpu_memory_booked_bytes", of(1)] == 6144 * MIB, "the kubelet keeps both apart"
    node.state.pods.pop("default/a")
    assert ("container_memory_limit_bytes", labels()) not in node.samples(), "its series end with it"


def test_what_a_namespace_has_is_counted_once(tmp_path: Path) -> None:
    """An init container hands its devices on, and has no series once it has ended."""
    node = Node(tmp_path, Mode.CGPU)
    parts = (
        ContainerDevices("init", Phase.INIT, GPU_MEMORY, memory_ids(0), f"{POD}-init"),
        ContainerDevices("main", Phase.APP, GPU_MEMORY, memory_ids(0), f"{POD}-main"),
    )
    put_devices(node, POD, "a", *parts)
    pod = simple_pod("a", container("main", mem=4))
    pod.metadata.uid = POD
    pod.spec.init_containers = (container("init", mem=4),)
    node.put(pod)
    found = node.samples()
    booked = frozenset({"namespace": "default", "gpu": "1"}.items())
    assert found["namespace_memory_booked_bytes", booked] == found["gpu_memory_booked_bytes", of(1)] == 4096 * MIB
    assert ("container_memory_limit_bytes", labels(container="init")) in found
    assert found["gpu_time_share_ratio", labels()] == 1, "the init container does not run beside it"
    ended = StartedContainer(name="init", state=StartedContainerState(terminated=ContainerEnd()))
    status = PodStatusOnNode(init_container_statuses=(ended,))
    spec = PodSpecOnNode(containers=pod.spec.containers, init_containers=pod.spec.init_containers)
    node.put(PodOnNode(metadata=pod.metadata, spec=spec, status=status))
    found = node.samples()
    assert ("container_memory_limit_bytes", labels(container="init")) not in found
    assert ("container_memory_limit_bytes", labels()) in found


def test_pods_that_take_turns_have_their_parts_of_a_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.EXCLUSIVE)
    inventory = Inventory(node.state.node_config.inventory.gpus, mode="default", unit_mib=1024, replicas=4)
    effective = EffectiveMode(Mode.EXCLUSIVE, 1024, Sharing.TIME_SLICING, 4)
    node.state.node_config = NodeConfig(inventory, effective)
    found = node.samples()
    booked = frozenset({"namespace": "default", "gpu": "1"}.items())
    assert found["namespace_memory_booked_bytes", booked] == 2560 * MIB
    assert found["container_memory_limit_bytes", labels()] == 10240 * MIB, "nothing keeps it from all of the memory"


PROFILE = "nvidia.com/mig-1g.5gb"


def test_pods_on_mig_instances_are_told_of_the_gpu_and_of_the_instances(tmp_path: Path) -> None:
    """The GPU is none of the whole ones that the node offers."""
    node = Node(tmp_path, Mode.EXCLUSIVE)
    made = tuple(MigInstance(f"MIG-{gi}", "1g.5gb", 4864, gi, 0) for gi in (1, 2, 3))
    split = ProbedGpu(1, "GPU-1", "A30", 24576, "0:1", mig=Mig.ON, instances=made)
    machine = ProbedMachine((node.monitor.seen.machine.gpus[0], split))
    node.monitor.seen = Observation(machine, Health())
    effective = EffectiveMode(Mode.EXCLUSIVE, 1024, Sharing.MIG)
    node.state.node_config = node_config_of(machine, Health(), effective, "", "")
    release(node.state, POD)
    for uid, name, ids in ((POD, "a", ("MIG-1", "MIG-2")), (OTHER, "b", ("MIG-3",))):
        pod = simple_pod(name, container("main", asks={PROFILE: len(ids)}))
        pod.metadata.uid = uid
        node.put(pod)
        devices = ContainerDevices("main", Phase.APP, PROFILE, ids, f"{uid}-main")
        hold(node.state, PodDevices(uid, "default", name, 1024, "default", "default", 0, (devices,)))
    node.monitor.readings = (GpuReading("GPU-1", used=200 * MIB),)
    found = node.samples()
    assert found["container_memory_limit_bytes", labels()] == 2 * 4864 * MIB
    assert found["gpu_memory_bytes", of(1)] == 24576 * MIB
    assert found["gpu_memory_booked_bytes", of(1)] == 3 * 4864 * MIB
    assert found["gpu_pods", of(1)] == 2
    assert found["gpu_compute_booked_ratio", of(1)] == 0, "profiles do not say what part of a GPU's time they are"
    assert found["namespace_memory_booked_bytes", of(1, namespace="default")] == 3 * 4864 * MIB
    assert found["mig_instance_pods", of(1, uuid="MIG-3", profile="1g.5gb")] == 1
    release(node.state, OTHER)
    assert node.samples()["mig_instance_pods", of(1, uuid="MIG-3", profile="1g.5gb")] == 0
