"""``python -m benchmarks.small_clusters``: how many pods packing and binpack place on random small clusters.

No policy that sees one pod at a time beats another one on every cluster, and a pod of several GPUs that is placed takes
the place of several small ones. So both pods and GPUs are compared.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.replay.engine import replay
from benchmarks.replay.study import make_placer
from benchmarks.replay.trace import Arrivals, Nodes, PodShape, Workload

MOST_PODS = 600


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much more packing placed than binpack on one cluster: in pods, and as a fraction of all GPUs."""

    pods: int
    gpus: float


def cluster(seed: int) -> tuple[Nodes, Workload, Arrivals]:
    """Draw 1 to 12 nodes of 1 to 8 GPUs, and pods that request 0.9 to 1.3 times as many GPUs."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 13))
    sizes = [1, 2, 4, 8]
    gpus = rng.choice(sizes, count) if rng.random() < 0.5 else np.full(count, int(rng.choice(sizes)))
    tight = bool(rng.random() < 0.3)  # CPU runs out before the GPUs
    cpu = gpus * (8000 if tight else 32000)
    nodes = Nodes(cpu.astype(np.int64), np.full(count, 10**7), gpus.astype(np.int64), ("A10",) * count)
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
    return nodes, Workload("drawn", shapes, pods, None), Arrivals(np.arange(len(pods)), rng.permutation(count))


def _shape(rng: np.random.Generator, *, tight: bool) -> PodShape:
    kind = rng.random()
    cpu = int(rng.integers(1, 12)) * 1000 if tight else 1000
    if kind < 0.6:
        return PodShape(cpu, 1000, 1, int(rng.integers(1, 20)) * 50, frozenset())
    return PodShape(cpu, 1000, 1 if kind < 0.85 else int(rng.choice([2, 4, 8])), 1000, frozenset())


def compare(seed: int) -> Comparison:
    """Compare packing with binpack on the cluster of a seed."""
    nodes, workload, arrivals = cluster(seed)
    packing, binpack = (
        replay(make_placer(policy, nodes, workload, arrivals, 1), workload, arrivals)
        for policy in ("packing", "binpack")
    )
    pods = int(packing.placed.sum()) - int(binpack.placed.sum())
    return Comparison(pods, float(packing.used[-1] - binpack.used[-1]) / nodes.milli)


def main() -> None:
    """Print in how many clusters packing places fewer pods than binpack, and in how many more."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_clusters", description=__doc__)
    parser.add_argument("--clusters", type=int, default=1000)
    count = parser.parse_args().clusters
    found = [compare(seed) for seed in range(count)]
    fewer, more = sum(each.pods < 0 for each in found), sum(each.pods > 0 for each in found)
    points = 100 * sum(each.gpus for each in found) / count
    print(f"{count} clusters: packing places fewer pods in {fewer}, at worst {min(each.pods for each in found)};")
    print(f"more in {more}, at best {max(each.pods for each in found)}; {points:+.2f} points of the GPUs on average")


if __name__ == "__main__":
    main()
