"""Measures the CPU time of ``gputile simulate`` on large clusters, with a manifest for each pod.

The benchmark measures complete processes. The requests resemble those of the openb trace. Most pods
request a part of a GPU or one GPU, and some request several GPUs or none. CPU and memory vary
widely.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Result

NAME = "what-if"
SIZES = ((1_215, 10_866, 15.0), (5_000, 100_000, 150.0))
"""Nodes, pods, and the target in seconds."""
_MIB = 2**20
_MOST_MIB = 1024.0
_MACHINES = (
    (2, 64, 256),
    (4, 96, 384),
    (8, 128, 512),
    (8, 64, 128),
    (8, 96, 768),
)  # GPUs, CPUs, GiB
_GPUS = (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8)
_PARTS = (4, 8, 16, 26, 32, 64, 128, 128, 128)  # units of 128 MiB; a GPU has 128


def run() -> Iterator[Result]:
    """Simulate clusters of several sizes."""
    for nodes, pods, target in SIZES:
        documents = documents_of(pods)
        began = time.process_time()
        for document in documents:
            json.loads(document)
        reading = time.process_time() - began
        seconds, mib = simulated(nodes, documents)
        what = f"{pods} pods on {nodes} nodes"
        yield Result(NAME, what, seconds, "s", target, seconds / reading, "json.loads of the pods")
        yield Result(NAME, f"{what}: memory", mib, "MiB", _MOST_MIB)


def simulated(nodes: int, documents: Sequence[str]) -> tuple[float, float]:
    """Return the CPU seconds and the memory in MiB of the command for these manifests."""
    with tempfile.TemporaryDirectory() as directory:
        cluster, manifests = Path(directory) / "cluster.yaml", Path(directory) / "pods.yaml"
        cluster.write_text(_cluster(nodes), encoding="utf-8")
        manifests.write_text("---\n" + "\n---\n".join(documents) + "\n", encoding="utf-8")
        program = str(Path(sys.executable).with_name("gputile"))
        return _costs([program, "simulate", "--cluster", str(cluster), "-f", str(manifests)])


def _costs(command: Sequence[str]) -> tuple[float, float]:
    with subprocess.Popen(
        [*command, "-o", "json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / _MIB


def _cluster(count: int) -> str:
    kinds = [
        f"- {{name: n{i}-, count: {count // len(_MACHINES)}, mode: cgpu, cpu: {cpus}, memory: "
        f"{gib}GiB, "
        f"gpus: {{count: {gpus}, model: Tesla T4, memory: 16GiB}}, taints: []}}"
        for i, (gpus, cpus, gib) in enumerate(_MACHINES)
    ]
    head = "apiVersion: gputile.io/v1alpha1\nkind: Cluster\ngpuMemoryUnit: 128MiB\nnodes:\n"
    return head + "\n".join(kinds) + "\n"


def documents_of(count: int) -> list[str]:
    """Return the manifests of ``count`` pods, one manifest for each pod."""
    return [json.dumps(each) for each in _pods(count)]


def _pods(count: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(1)
    for i in range(count):
        gpus = chance.choice(_GPUS)
        units = chance.choice(_PARTS) if gpus == 1 else 128 * gpus
        cpu, mib = chance.randrange(500, 16_500, 500), chance.randrange(512, 32_768, 512)
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"p{i}",
                "annotations": {"aliyun.com/gpu-count": str(gpus)} if gpus > 1 else {},
            },
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "registry.example/app:1",
                        "resources": {
                            "limits": {"aliyun.com/gpu-mem": units} if gpus else {},
                            "requests": {"cpu": f"{cpu}m", "memory": f"{mib}Mi"},
                        },
                    }
                ]
            },
        }
