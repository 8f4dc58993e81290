"""Packing beside binpack on small clusters: what docs/guides/extender.md says of both."""

import numpy as np
import pytest
from benchmarks.replay.engine import replay
from benchmarks.replay.study import make_placer
from benchmarks.replay.trace import Arrivals, Nodes, PodShape, Workload
from benchmarks.small_clusters import placed

pytestmark = pytest.mark.requirement("B3")


def test_packing_seldom_places_fewer_pods() -> None:
    """Of the first 40 clusters in 3, by two pods at most; and it allocates more GPUs of all clusters together."""
    pairs = [(placed("packing", seed), placed("binpack", seed)) for seed in range(40)]
    gains = [mine["pods"] - other["pods"] for mine, other in pairs]
    assert sum(pods < 0 for pods in gains) <= 3
    assert min(gains) >= -2
    assert sum(mine["GPUs"] - other["GPUs"] for mine, other in pairs) > 0


@pytest.mark.parametrize("policy", ["binpack", "packing"])
def test_who_places_a_pod_of_several_gpus_may_place_fewer_pods(policy: str) -> None:
    """So no policy places at least as many pods as another one on every cluster, whatever it decides by."""
    one, four = (PodShape(1000, 1000, gpus, 1000, frozenset()) for gpus in (1, 4))
    nodes = Nodes(np.array([128_000]), np.array([10**7]), np.array([4]), ("A10",))
    placed = []
    for first in ([], [0]):  # with one GPU in use the pod of four fits nowhere, and three more of one GPU do
        pods = np.array([*first, 1, 0, 0, 0])
        workload, arrivals = Workload("made", (one, four), pods, None), Arrivals(np.arange(len(pods)), np.arange(1))
        placed.append(int(replay(make_placer(policy, nodes, workload, arrivals, 1), workload, arrivals).placed.sum()))
    assert placed == [1, 4]
