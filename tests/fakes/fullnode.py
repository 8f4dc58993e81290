"""The metrics of a node that is full: 200 pods on 8 GPUs, each with one process, isolated ones or ones that share."""

import fcntl
import os
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.gpu_health import Health
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_ids import part_id
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodContainer, PodDevices
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.status.metrics import AgentMetrics, NodeMetrics
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.agent.time_shares import TimeUsed
from gputile.node.native_layouts import USAGE, USAGE_BYTES, USAGE_LOCK_SLOTS, USAGE_MAGIC
from gputile.node.nvml.gpu_monitor import Observation
from gputile.node.nvml.probe import GpuProcess, GpuReading, ProbedGpu, ProbedMachine
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.devicetable import hold

GPUS, PODS = 8, 200
MIB = 1 << 20


@dataclass
class _Monitor:
    """Has seen 8 GPUs, and a process of each pod."""

    seen: Observation
    readings: tuple[GpuReading, ...]
    xids: Mapping[tuple[str, int], int]

    def step(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        pass


def full_registry(mode: Mode, directory: Path, open_files: ExitStack) -> CollectorRegistry:
    """Return the metrics of an agent with such pods; what libraries and processes write goes into ``directory``.

    The processes of the containers live until ``open_files`` are closed.
    """
    usage, proc = UsageFiles(directory / "usage"), directory / "proc"
    usage.directory.mkdir()
    state, metrics = _state(mode), AgentMetrics()
    processes = []
    for number, devices in enumerate(state.device_table):
        (part,) = devices.devices
        _count(usage.path(part.directory), open_files)
        (proc / str(number)).mkdir(parents=True)
        (proc / str(number) / "cgroup").write_text(f"0::/kubepods/pod{devices.uid}/{number:064x}\n")
        processes.append(GpuProcess(number, _uuid(number), MIB))
    gpus = tuple(ProbedGpu(i, _uuid(i), "NVIDIA A100-SXM4-80GB", 81920, f"0:{i}") for i in range(GPUS))
    readings = tuple(
        GpuReading(gpu.uuid, MIB, 50, 60, 250.0, 0, 0, tuple(p for p in processes if p.uuid == gpu.uuid))
        for gpu in gpus
    )
    snapshots = Snapshots(state)
    snapshots.refresh()
    monitor = _Monitor(Observation(ProbedMachine(gpus), Health()), readings, {})
    metrics.registry.register(NodeMetrics(snapshots, monitor, usage, proc))
    if mode is Mode.CGPU:
        metrics.gpu_times.rows = tuple(
            TimeUsed(
                PodContainer(each.uid, "default", each.name, "main"), str(i % GPUS), 12345.678901234 + i, 2345.678901234
            )
            for i, each in enumerate(state.device_table)
        )
    return metrics.registry


def _uuid(number: int) -> str:
    """Return the UUID of the GPU that the container with this number is on: as long as a real one's."""
    return f"GPU-{number % GPUS:08x}-4f0e-4a0a-9d3e-0d3c5a1b2c3d"


def _state(mode: Mode) -> AllocationState:
    gpus = tuple(Gpu(i, _uuid(i), 81920) for i in range(GPUS))
    config = NodeConfig(Inventory(gpus, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
    state = AllocationState(Configuration(), config, DeviceTable())
    for i in range(PODS):
        # As names are: a Deployment's, with the hash of its template and a suffix.
        pod = simple_pod(f"inference-7d9c5b8f6d-{i:05}", container(mem=2))
        uid = pod.metadata.uid = f"00000000-0000-0000-0000-{i:012}"
        state.pods[pod.key] = known_pod(pod, state.configuration)
        ids = tuple(part_id(_uuid(i), i * 2 + n) for n in range(2))
        devices = (ContainerDevices("main", Phase.APP, GPU_MEMORY, ids, f"{uid}-main"),)
        hold(state, PodDevices(uid, "default", pod.metadata.name, 1024, mode.value, "default", 0, devices))
    return state


def _count(path: Path, open_files: ExitStack) -> None:
    """Write what the library of a container with one process counts, and keep its slot locked as the process does."""
    content = bytearray(USAGE_BYTES)
    struct.pack_into("<IIII", content, 0, USAGE_MAGIC, 1, 1, 1)
    for name in ("used", "peak"):
        struct.pack_into("<Q", content, USAGE.offsets[name], 1234567 * 512)
    path.write_bytes(content)
    file = os.open(path, os.O_RDWR)
    open_files.callback(os.close, file)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS, 1, 0))
