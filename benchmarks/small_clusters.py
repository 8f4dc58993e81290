"""Compares packing with binpack on 1,000 random clusters of 1 to 12 nodes.

The policies are compared by the number of allocated GPUs, as in the replay. The number of placed
pods is printed too, but can mislead, because a pod with four GPUs takes the GPUs of several small
pods. No policy that decides about one pod at a time is better than another on every cluster.
"""

from collections.abc import Iterator
from statistics import mean

import numpy as np

from benchmarks.replay.engine import replay
from benchmarks.replay.study import make_placer
from benchmarks.replay.trace import Arrivals, Nodes, PodShape, Workload
from benchmarks.report import Result

NAME = "small-clusters"
CLUSTERS = 1000
MOST_PODS = 600


def cluster(seed: int) -> tuple[Nodes, Workload, Arrivals]:
    """Draw 1 to 12 nodes of 1 to 8 GPUs, and pods that request 0.9 to 1.3 times as many GPUs."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 13))
    sizes = [1, 2, 4, 8]
    gpus = (
        rng.choice(sizes, count) if rng.random() < 0.5 else np.full(count, int(rng.choice(sizes)))
    )
    tight = bool(rng.random() < 0.3)  # CPU runs out before the GPUs
    cpu = gpus * (8000 if tight else 32000)
    nodes = Nodes(
        cpu.astype(np.int64), np.full(count, 10**7), gpus.astype(np.int64), ("A10",) * count
    )
    shapes = tuple(dict.fromkeys(_shape(rng, tight=tight) for _ in range(int(rng.integers(1, 7)))))
    chance = rng.dirichlet(np.ones(len(shapes)))
    load = float(rng.choice([0.9, 1.0, 1.3]))
    order: list[int] = []
    asked = 0
    while asked < load * nodes.milli and len(order) < MOST_PODS:
        index = int(rng.choice(len(shapes), p=chance))
        order.append(index)
        asked += shapes[index].demand
    pods = np.array(order, np.int64)
    return (
        nodes,
        Workload("drawn", shapes, pods, None),
        Arrivals(np.arange(len(pods)), rng.permutation(count)),
    )


def _shape(rng: np.random.Generator, *, tight: bool) -> PodShape:
    kind = rng.random()
    cpu = int(rng.integers(1, 12)) * 1000 if tight else 1000
    if kind < 0.6:
        return PodShape(cpu, 1000, 1, int(rng.integers(1, 20)) * 50, frozenset())
    return PodShape(cpu, 1000, 1 if kind < 0.85 else int(rng.choice([2, 4, 8])), 1000, frozenset())


def placed(policy: str, seed: int) -> dict[str, float]:
    """Place the pods on the cluster of a seed.

    Return the allocated GPUs, the placed pods, and the percentage of allocated GPUs.
    """
    nodes, workload, arrivals = cluster(seed)
    curve = replay(make_placer(policy, nodes, workload, arrivals, 1), workload, arrivals)
    used = int(curve.used[-1])
    return {"GPUs": used / 1000, "pods": int(curve.placed.sum()), "%": 100 * used / curve.total}


def run() -> Iterator[Result]:
    """Yield what packing places on all clusters, and on how many clusters it places less or more
    than binpack.
    """
    pairs = [(placed("packing", seed), placed("binpack", seed)) for seed in range(CLUSTERS)]
    packing, binpack = (mean(found["%"] for found in policy) for policy in zip(*pairs, strict=True))
    yield Result(
        NAME,
        "GPUs allocated, mean of the clusters",
        packing,
        "%",
        None,
        packing / binpack,
        "binpack",
    )
    for unit in ("GPUs", "pods"):
        gains = [mine[unit] - other[unit] for mine, other in pairs]
        fewer, more = sum(gain < 0 for gain in gains), sum(gain > 0 for gain in gains)
        yield Result(
            NAME,
            f"clusters with fewer {unit} than binpack",
            fewer,
            "",
            None,
            fewer / more,
            "those with more",
        )
        loss, gain = -min(gains), max(gains)
        yield Result(
            NAME, "the largest loss on a cluster", loss, unit, None, loss / gain, "the largest gain"
        )
