"""What a scrape of the agent costs: 200 pods on 8 GPUs, each with a process, isolated ones and ones that share.

The agent's own process answers on a thread of its own; here nothing else runs in it.
"""

import fcntl
import gzip
import os
import statistics
import struct
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod
from tests.localcluster.ports import free_ports

from benchmarks.report import Result
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.health import Health
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import known_pod
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.status.metrics import AgentMetrics, TimeUsed
from gputile.node.agent.status.monitoring import monitoring_app, start_monitoring
from gputile.node.agent.status.node_metrics import NodeMetrics
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.native_layouts import USAGE, USAGE_BYTES, USAGE_LOCK_SLOTS, USAGE_MAGIC
from gputile.node.nvml.monitor import Observation
from gputile.node.nvml.probe import GpuProcess, GpuReading, ProbedGpu, ProbedMachine

NAME = "metrics"
GPUS, PODS, SCRAPES = 8, 200, 50
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


def run() -> Iterator[Result]:
    """Measure milliseconds and kilobytes."""
    for mode in (Mode.CGPU, Mode.SHARE):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, ExitStack() as open_files:
            yield from _scraped(mode, Path(directory), open_files)


def _scraped(mode: Mode, directory: Path, open_files: ExitStack) -> Iterator[Result]:
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
            TimeUsed("default", each.name, "main", _uuid(i), 1.5, 0.5) for i, each in enumerate(state.device_table)
        )
    (port,) = free_ports(1)
    server = start_monitoring(port, monitoring_app(metrics.registry, str, str))
    seconds, body = [], b""
    before = time.process_time()
    for _ in range(SCRAPES):
        began = time.perf_counter()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked) as answer:  # as Prometheus asks
            body = answer.read()
        seconds.append(time.perf_counter() - began)
    cpu = time.process_time() - before
    server.shutdown()
    server.server_close()
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, median", statistics.median(seconds) * 1000, "ms", 50.0)
    yield Result(NAME, f"{PODS} pods, {mode.value}: CPU of a scrape", cpu / SCRAPES * 1000, "ms")
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, as it is sent", len(body) / 1000, "kB", 200.0)
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, unpacked", len(gzip.decompress(body)) / 1000, "kB")


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
        ids = tuple(f"g{i % GPUS}-{i * 2 + n:05}" for n in range(2))
        devices = (ContainerDevices("main", Phase.APP, GPU_MEMORY, ids, f"{uid}-main"),)
        name, gpu = pod.metadata.name, {i % GPUS: _uuid(i)}
        state.device_table.put(PodDevices(uid, "default", name, 1024, mode.value, "default", 0, devices, gpu))
    return state


def _count(path: Path, open_files: ExitStack) -> None:
    """Write what the library of a container with one process counts, and keep its slot locked as the process does."""
    content = bytearray(USAGE_BYTES)
    struct.pack_into("<IIII", content, 0, USAGE_MAGIC, 1, 1, 1)
    struct.pack_into("<Q", content, USAGE.offsets["used"], MIB)
    path.write_bytes(content)
    file = os.open(path, os.O_RDWR)
    open_files.callback(os.close, file)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS, 1, 0))
