"""Traces small enough to follow by hand, and clusters made for a purpose."""

from pathlib import Path

import numpy as np
from benchmarks.replay.trace import Arrivals, Nodes, PodShape, Workload

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1000,2,T4\nn2,8000,1000,1,V100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n{}"
# Two pods of 0.6, one of a whole V100, one of 0.4, one that needs two GPUs.
LIST = "a,1000,1,1,600,\nb,1000,1,1,600,\nc,1000,1,1,1000,V100\nd,1000,1,1,400,\ne,1000,1,2,1000,\n"
TIMED = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n{}"


def write_trace(directory: Path, pods: str = LIST, order: str = "0 1 2 3 4", nodes: str = NODES) -> Path:
    (directory / "openb_node_list_gpu_node.csv").write_text(nodes, encoding="utf-8", errors="surrogateescape")
    (directory / "openb_pod_list_tiny.csv").write_text(PODS.format(pods))
    (directory / "arrivals").mkdir(exist_ok=True)
    (directory / "arrivals" / "openb_pod_list_tiny.seq.csv").write_text("42," + order.replace(" ", ",") + "\n")
    (directory / "arrivals" / "openb_pod_list_tiny.noderank.csv").write_text("42,0,1\n")
    return directory


def uniform(count: int, gpus: int, cpu: int) -> Nodes:
    """Return ``count`` nodes of ``gpus`` GPUs and ``cpu`` milli-CPU each."""
    full = np.full(count, 1, np.int64)
    return Nodes(full * cpu, full * 10**6, full * gpus, ("A10",) * count)


def unlike(count: int) -> Nodes:
    """Return ``count`` nodes: half with 4 A10, and as many with 2 T4 and much CPU as with 2 P100 and little."""
    kinds = [("A10", 4, 48000), ("T4", 2, 104000), ("A10", 4, 48000), ("P100", 2, 16000)] * count
    models, gpus, cpu = zip(*kinds[:count], strict=True)
    return Nodes(np.array(cpu), np.full(count, 10**6), np.array(gpus), models)


def share(milli: int, cpu: int = 2000, gpus: int = 1, models: frozenset[str] = frozenset()) -> PodShape:
    return PodShape(cpu, 1000, gpus, milli, models)


def stream(nodes: Nodes, *parts: tuple[tuple[PodShape, ...], float], seed: int = 1) -> tuple[Workload, Arrivals]:
    """Return pods drawn from each part's shapes alike, until as many GPUs as that part of the cluster were asked."""
    rng = np.random.default_rng(seed)
    shapes = tuple(dict.fromkeys(shape for some, _ in parts for shape in some))
    order: list[int] = []
    for some, portion in parts:
        asked = 0
        while asked < portion * nodes.milli:
            shape = some[int(rng.integers(len(some)))]
            order.append(shapes.index(shape))
            asked += shape.demand
    pods = np.array(order, np.int64)
    return Workload("made", shapes, pods, None), Arrivals(np.arange(len(pods)), rng.permutation(len(nodes.gpus)))
