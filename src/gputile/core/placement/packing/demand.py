"""Keeps recent demand, learnt from the pods that came, as the input of ``prices``."""

import numpy as np

from gputile.core.placement.packing.prices import WHOLE_GPU, Demand

PRIOR_PODS = 40.0
"""How many pods the prior counts for before any came."""
HALF_LIFE = 20_000.0
"""Pods after which what was seen counts half."""
_KINDS = 512
"""Kinds kept; the rarest go when there are twice as many."""

Kind = tuple[int, int, int, frozenset[str]]


def generic(cpu_per_gpu: float, gpus_per_node: int) -> Demand:
    """Return a demand to start with: mostly whole GPUs, some halves, quarters and whole nodes.

    ``cpu_per_gpu`` is what the cluster has, in milli-CPU; pods are taken to ask for three quarters of it.
    """
    mix = [(1, WHOLE_GPU, 0.6), (1, WHOLE_GPU // 2, 0.2), (1, WHOLE_GPU // 4, 0.12), (gpus_per_node, WHOLE_GPU, 0.08)]
    gpus = np.array([count for count, _, _ in mix], np.int64)
    milli = np.array([share for _, share, _ in mix], np.int64)
    cpu = (0.75 * cpu_per_gpu * gpus * milli / WHOLE_GPU).astype(np.int64)
    weight = np.array([part for _, _, part in mix]) * WHOLE_GPU / (gpus * milli)
    return Demand(gpus, milli, cpu, (frozenset(),) * len(mix), weight)


class DemandEstimator:
    """A histogram of the kinds of requests that came, forgetting exponentially."""

    def __init__(self, prior: Demand) -> None:
        self._weights: dict[Kind, float] = {}
        self._unit = 1.0  # the weight of one pod now; growing it is cheaper than shrinking all stored weights
        self._growth = 2 ** (1 / HALF_LIFE)
        self._cpu, self._memory = 0.0, 0.0  # that GPU pods asked for, weighted like the pods
        total = float(prior.weight.sum())
        arrays = (prior.gpus.tolist(), prior.milli.tolist(), prior.cpu.tolist(), prior.models, prior.weight.tolist())
        for gpus, milli, cpu, models, weight in zip(*arrays, strict=True):
            self._weights[gpus, milli, cpu, models] = PRIOR_PODS * weight / total

    def observe(self, gpus: int, milli: int, cpu: int, models: frozenset[str], memory: int = 0) -> None:
        """Note a pod that came: GPUs, thousandths of each, milli-CPU, the models that will do (empty for any), MiB."""
        kind = (gpus, milli, cpu, models)
        self._weights[kind] = self._weights.get(kind, 0.0) + self._unit
        if gpus and memory:
            self._cpu += self._unit * cpu
            self._memory += self._unit * memory
        self._unit *= self._growth
        if len(self._weights) > 2 * _KINDS:
            kept = sorted(self._weights.items(), key=lambda item: -item[1])[:_KINDS]
            self._weights = dict(kept)
        if self._unit > 1e12:
            self._weights = {kind: weight / self._unit for kind, weight in self._weights.items()}
            self._cpu, self._memory = self._cpu / self._unit, self._memory / self._unit
            self._unit = 1.0

    def demand(self) -> Demand:
        """Return the demand as it stands."""
        kinds = list(self._weights)
        gpus, milli, cpu = np.array([kind[:3] for kind in kinds], np.int64).reshape(-1, 3).T
        weight = np.array(list(self._weights.values())) / self._unit
        cpu_per_mib = self._cpu / self._memory if self._memory else 0.0
        return Demand(gpus, milli, cpu, tuple(kind[3] for kind in kinds), weight, cpu_per_mib)
