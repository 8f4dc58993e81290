"""Measures the agent and its gateway while a fake kubelet admits 200 pods as fast as it can.

Agent and gateway run as processes. The kubelet is a fake of ``tests.fakes`` with a device manager,
and starts no containers. A simulated NVML provides the GPUs. The benchmark needs no root.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.process import process_scene
from tests.localcluster.processes import cpu_seconds, resident_mib

from benchmarks.report import Result
from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.well_known import GPU_MEMORY, MODE_LABEL
from gputile.node.gateway import kubelet_pb2 as pb

NAME = "agent"
PODS, SETTLE_S, IDLE_S = 200, 12.0, 10.0


def run() -> Iterator[Result]:
    """Measure calls in milliseconds, memory in MiB, and CPU in percent of a core."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield from asyncio.run(_admit(Path(directory)))


async def _admit(directory: Path) -> list[Result]:
    configuration = Configuration(gpu_memory_unit="128MiB", trust=Trust(by="cluster"))
    async with process_scene(directory, {MODE_LABEL: "share"}, [81920] * 8, configuration) as here:
        await here.until_offered(GPU_MEMORY, 8 * 640)
        await asyncio.sleep(SETTLE_S)
        found = [
            Result(NAME, "memory, idle, 8 GPUs, no pod", resident_mib(here.pids()), "MiB", 60.0)
        ]
        used = cpu_seconds(here.pids())
        await asyncio.sleep(IDLE_S)
        cpu = 100 * (cpu_seconds(here.pids()) - used) / IDLE_S
        found.append(Result(NAME, "CPU, idle", cpu, "%", 0.5))
        for i in range(PODS):
            here.cluster.create(
                simple_pod(f"p{i}", container(mem=16 + i % 8), namespace=f"ns{i % 5}")
            )
        await here.until_running(PODS)
        empty = await _empty_call(here.kubelet.manager.endpoints[GPU_MEMORY].stub)
        for call, seconds in sorted(here.kubelet.manager.seconds.items()):
            half, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
            target = 50.0 if call == "Allocate" else None
            for what, value, limit in (("p50", half, None), ("p99", p99, target)):
                text = f"{call}, {PODS} pods, {what}"
                found.append(
                    Result(NAME, text, value * 1000, "ms", limit, value / empty, "an empty call")
                )
        await asyncio.sleep(SETTLE_S)
        memory = resident_mib(here.pids())
        found.append(
            Result(
                NAME, f"memory, {PODS} pods", memory, "MiB", 80.0, memory / found[0].value, "no pod"
            )
        )
    return found


async def _empty_call(stub: Any) -> float:
    """Return the median seconds of a call that the gateway answers without calling the agent."""
    seconds = []
    for _ in range(PODS):
        began = time.perf_counter()
        await stub.GetDevicePluginOptions(pb.Empty())
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
