"""What Prometheus is told of the node's GPUs and of the containers on them."""

import fcntl
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, PodOnNode, PodStatusOnNode, StartedContainer
from gputile.api.well_known import GPU_MEMORY, WHOLE_GPU, Mode
from gputile.core.devices.health import Examined, Health, after
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import known_pod
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.status.node_metrics import NodeMetrics
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.native_layouts import USAGE, USAGE_BYTES, USAGE_LOCK_SLOTS, USAGE_MAGIC
from gputile.node.nvml.monitor import Observation
from gputile.node.nvml.probe import GpuProcess, GpuReading, ProbedGpu, ProbedMachine
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod

pytestmark = pytest.mark.requirement("B7")

MIB = 1 << 20
POD = "8e9b6a5c-4f0e-4a0a-9d3e-0d3c5a1b2c3d"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Monitor:
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
        resource, ids = (GPU_MEMORY, 4) if mode.shared else (WHOLE_GPU, 1)
        parts = tuple(
            ContainerDevices(
                name, Phase.APP, resource, tuple(f"g1-{n + 10 * i:05}" for n in range(ids)), f"{POD}-{name}"
            )
            for i, name in enumerate(containers)
        )
        asked = (container(name, mem=4) if mode.shared else container(name, asks={WHOLE_GPU: 1}) for name in containers)
        pod = simple_pod("a", *asked)
        pod.metadata.uid = POD
        self.put(pod)
        self.state.device_table.put(
            PodDevices(POD, "default", "a", 1024, mode.value, "default", 0, parts, {1: "GPU-1"})
        )
        self.monitor, self.usage, self.proc = Monitor(), UsageFiles(tmp_path / "usage"), tmp_path / "proc"
        self.usage.directory.mkdir()
        self.snapshots = Snapshots(self.state)
        self.registry = CollectorRegistry()
        self.registry.register(NodeMetrics(self.snapshots, self.monitor, self.usage, self.proc))

    def put(self, pod: Pod) -> None:
        self.state.pods[pod.key] = known_pod(pod, self.state.configuration)

    def process(self, pid: int, cgroup: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(cgroup)

    def text(self) -> str:
        self.snapshots.refresh()
        return generate_latest(self.registry).decode()

    def samples(self) -> Samples:
        return {
            (sample.name.removeprefix("gputile_agent_"), frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }


def labels(gpu: int = 1, container: str = "main") -> frozenset[tuple[str, str]]:
    return frozenset({"namespace": "default", "pod": "a", "container": container, "gpu": f"GPU-{gpu}"}.items())


def of(gpu: int, **more: str) -> frozenset[tuple[str, str]]:
    return frozenset({"gpu": f"GPU-{gpu}", **more}.items())


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


def test_without_a_file_only_the_limit_is_known(tmp_path: Path) -> None:
    found = Node(tmp_path, Mode.CGPU).samples()
    assert ("container_memory_limit_bytes", labels()) in found
    assert ("container_memory_used_bytes", labels()) not in found


@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.MPS, Mode.EXCLUSIVE])
def test_modes_without_the_library_are_told_as_nvml_tells_of_processes(tmp_path: Path, mode: Mode) -> None:
    node = Node(tmp_path, mode)
    node.process(7, f"0::/kubepods/pod{POD}/{'ab' * 32}\n")
    node.process(8, f"0::/kubepods/pod{POD}/{'cd' * 32}\n")
    node.process(9, "0::/system.slice/somebody.service\n")
    processes = tuple(GpuProcess(pid, "GPU-1", 100 * MIB) for pid in (7, 8, 9, 10))
    node.monitor.readings = (GpuReading("GPU-1", processes=processes),)
    found = node.samples()
    assert found["container_memory_used_bytes", labels()] == 200 * MIB
    assert found["container_memory_limit_bytes", labels()] == (4096 if mode.shared else 10240) * MIB
    assert ("container_memory_peak_bytes", labels()) not in found


def test_containers_of_a_pod_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.SHARE, ("one", "two"))
    known = node.state.pods["default/a"].pod
    statuses = tuple(
        StartedContainer(name=name, container_id=f"containerd://{digit * 64}")
        for name, digit in (("one", "1"), ("two", "2"))
    )
    node.put(PodOnNode(metadata=known.metadata, spec=known.spec, status=PodStatusOnNode(container_statuses=statuses)))
    for pid, digit in ((7, "1"), (8, "2"), (9, "3")):
        node.process(pid, f"0::/kubepods/pod{POD}/{digit * 64}\n")
    processes = tuple(GpuProcess(pid, "GPU-1", pid * MIB) for pid in (7, 8, 9))
    node.monitor.readings = (GpuReading("GPU-1", processes=processes),)
    found = node.samples()
    assert found["container_memory_used_bytes", labels(container="one")] == 7 * MIB
    assert found["container_memory_used_bytes", labels(container="two")] == 8 * MIB


def test_gpus_and_node(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    node.monitor.readings = (GpuReading("GPU-0", 5 * MIB, 50, 61, 70.5, 4, 1),)
    node.monitor.xids = {("GPU-0", 79): 2}
    seen = node.monitor.seen
    node.monitor.seen = Observation(seen.machine, after(seen.health, [Examined("GPU-0", "gone")], 0.0))
    found = node.samples()
    assert found["gpu_info", of(1, index="1", model="Tesla T4")] == 1
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
    assert found["gpu_xids_total", of(0, xid="79")] == 2
    (info,) = (dict(names) for name, names in found if name == "node_info")
    assert (info["mode"], info["unit_mib"], info["gpu_time_policy"]) == ("cgpu", "1024", "weighted")


def test_whole_gpus_are_booked_as_a_whole(tmp_path: Path) -> None:
    found = Node(tmp_path, Mode.EXCLUSIVE).samples()
    assert found["gpu_memory_booked_bytes", of(1)] == 10240 * MIB
    assert found["gpu_compute_booked_ratio", of(1)] == 1


def test_the_series_of_a_pod_end_with_it(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    assert 'pod="a"' in node.text()
    node.state.device_table.drop(POD)
    assert 'pod="a"' not in node.text()


def test_a_snapshot_is_taken_again_only_where_there_is_news(tmp_path: Path) -> None:
    node = Node(tmp_path, Mode.CGPU)
    node.snapshots.refresh()
    latest = node.snapshots.latest
    node.snapshots.refresh()
    assert node.snapshots.latest is latest
