"""Estimates the demand from the pods that a scheduler sees. Packing prices are derived from it."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from gputile.api.core import Pod
from gputile.api.well_known import LEGACY_MODEL_LABEL, MODEL_LABEL
from gputile.core.devices.request import Request, RequestKind
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.placement.prices import WHOLE_GPU, Demand

PRIOR_PODS = 10.0
"""The initial demand counts as this many pods."""
HALF_LIFE = 20_000.0
"""The number of pods after which an earlier pod counts half."""
_KINDS = 512
"""The number of kinds to store. When there are twice as many, the rarest are dropped."""

Kind = tuple[int, int, int, frozenset[str]]


def generic(cpu_per_gpu: float, gpus_per_node: int) -> Demand:
    """Return an initial demand: mostly whole GPUs, and some halves, quarters and whole nodes.

    ``cpu_per_gpu`` is the cluster's milli-CPU per GPU. Pods are assumed to request 75 % of it.
    """
    mix = [
        (1, WHOLE_GPU, 0.6),
        (1, WHOLE_GPU // 2, 0.2),
        (1, WHOLE_GPU // 4, 0.12),
        (gpus_per_node, WHOLE_GPU, 0.08),
    ]
    gpus = np.array([count for count, _, _ in mix], np.int64)
    milli = np.array([share for _, share, _ in mix], np.int64)
    cpu = (0.75 * cpu_per_gpu * gpus * milli / WHOLE_GPU).astype(np.int64)
    weight = np.array([part for _, _, part in mix]) * WHOLE_GPU / (gpus * milli)
    return Demand(gpus, milli, cpu, (frozenset(),) * len(mix), weight)


class DemandEstimator:
    """A histogram of the observed kinds of requests, with exponential decay."""

    def __init__(self, prior: Demand) -> None:
        self._weights: dict[Kind, float] = {}
        # The weight of one pod now. Increasing it is cheaper than decreasing all stored weights.
        self._unit = 1.0
        self._growth = 2 ** (1 / HALF_LIFE)
        self._cpu, self._memory = 0.0, 0.0  # weighted sums of the requests of GPU pods
        total = float(prior.weight.sum())
        arrays = (
            prior.gpus.tolist(),
            prior.milli.tolist(),
            prior.cpu.tolist(),
            prior.models,
            prior.weight.tolist(),
        )
        for gpus, milli, cpu, models, weight in zip(*arrays, strict=True):
            self._weights[gpus, milli, cpu, models] = PRIOR_PODS * weight / total

    def observe(
        self, gpus: int, milli: int, cpu: int, models: frozenset[str], memory: int = 0
    ) -> None:
        """Count a pod that requests ``gpus`` GPUs and ``milli`` thousandths of each GPU.

        ``cpu`` is milli-CPU, and ``memory`` is MiB of RAM. ``models`` are the GPU models that the
        pod accepts. The pod accepts all models if ``models`` is empty.
        """
        kind = (gpus, milli, cpu, models)
        self._weights[kind] = self._weights.get(kind, 0.0) + self._unit
        if gpus and memory:
            self._cpu += self._unit * cpu
            self._memory += self._unit * memory
        self._unit *= self._growth
        if len(self._weights) > 2 * _KINDS:
            commonest = sorted(self._weights.items(), key=lambda item: -item[1])[:_KINDS]
            self._weights = dict(commonest)
        if self._unit > 1e12:
            self._weights = {kind: weight / self._unit for kind, weight in self._weights.items()}
            self._cpu, self._memory = self._cpu / self._unit, self._memory / self._unit
            self._unit = 1.0

    def demand(self) -> Demand:
        kinds = list(self._weights)
        gpus, milli, cpu = np.array([kind[:3] for kind in kinds], np.int64).reshape(-1, 3).T
        weight = np.array(list(self._weights.values())) / self._unit
        cpu_per_mib = self._cpu / self._memory if self._memory else 0.0
        return Demand(gpus, milli, cpu, tuple(kind[3] for kind in kinds), weight, cpu_per_mib)


FIRST_DUE, GROWTH, MOST_BETWEEN = 3, 1.15, 500
"""Prices are due after 3 pods, since a small cluster is soon full, and then ever less often."""
_SEEN = 65_536
_AT_ONCE = 500
# A pod that names more models counts as accepting all, since kinds are stored for a long time.
_MOST_MODELS = 64
_USUAL_MIB = 40_960
_USUAL_CPU = 16_000.0  # milli-CPU per GPU, assumed if the cluster has no GPUs


class DemandTracker:
    """Estimates the demand of the pods that are scheduled on a ledger's nodes.

    Each pod counts once, however often it is scheduled. Pods that already have GPUs are counted
    before the demand is computed for the first time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._estimator: DemandEstimator | None = None
        self._caught_up = False
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._count, self._due = 0, FIRST_DUE
        self._gpu_mib = _USUAL_MIB

    def observe(self, pod: Pod, request: Request | None) -> None:
        """Count a pending pod. ``request`` is None if the pod requests no GPU."""
        if not self._is_new(pod.metadata.uid):
            return
        estimator = self._started()
        self._count += 1
        if request is None:
            estimator.observe(0, 0, host_request(pod).cpu, frozenset())
            return
        milli = WHOLE_GPU
        if request.shape.kind is RequestKind.SHARED:
            milli = self._milli(request.shape.mib, request.shape.percent)
        host = request.host
        estimator.observe(request.shape.gpus, milli, host.cpu, wanted_models(pod), host.mib)

    def due(self) -> bool:
        """Return whether prices must be computed again, because enough pods were counted."""
        if self._count < self._due:
            return False
        self._due = self._count + min(int(self._due * (GROWTH - 1)) + 1, MOST_BETWEEN)
        return True

    def demand(self) -> Demand:
        self._gpu_mib = _median_mib(self._ledger.node_arrays)
        for _ in self.catch_up():
            pass
        return self._started().demand()

    def _is_new(self, uid: str) -> bool:
        if uid in self._seen:
            return False
        self._seen[uid] = None
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return True

    def catch_up(self) -> Iterator[None]:
        """Count the pods that already have GPUs, in steps. Later calls count nothing."""
        if self._caught_up:
            return
        self._caught_up = True
        estimator = self._started()
        for number, booking in enumerate(list(self._ledger.bookings())):
            if number % _AT_ONCE == 0:
                yield
            if booking.gpus and self._is_new(booking.uid):
                share = booking.gpus[0]
                milli = WHOLE_GPU if booking.whole else self._milli(share.mib, share.percent)
                host = booking.host
                estimator.observe(len(booking.gpus), milli, host.cpu, frozenset(), host.mib)

    def _started(self) -> DemandEstimator:
        if self._estimator is None:
            arrays = self._ledger.node_arrays
            self._gpu_mib = _median_mib(arrays)
            gpus = (arrays.total > 0).sum(axis=1)
            cpu = sum(node_info.host.cpu for row, node_info in self._ledger.nodes() if gpus[row])
            per_gpu = cpu / float(gpus.sum()) if gpus.any() else _USUAL_CPU
            self._estimator = DemandEstimator(generic(per_gpu, max(1, int(gpus.max(initial=1)))))
        return self._estimator

    def _milli(self, mib: int, percent: int) -> int:
        """Return the larger of memory and compute, in thousandths of the cluster's median GPU."""
        memory = -(-mib * WHOLE_GPU // self._gpu_mib)
        return min(max(memory, percent * WHOLE_GPU // 100, 1), WHOLE_GPU)


def _median_mib(arrays: NodeArrays) -> int:
    sizes = arrays.total[arrays.usable]
    return max(1, int(np.median(sizes))) if len(sizes) else _USUAL_MIB


def wanted_models(pod: Pod) -> frozenset[str]:
    """Return the GPU models that the pod's selector and required affinity admit.

    The result is empty if they admit all models, or more than ``_MOST_MODELS``.
    """
    labels = (MODEL_LABEL, LEGACY_MODEL_LABEL)
    named = [{pod.spec.node_selector[label]} for label in labels if label in pod.spec.node_selector]
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    if len(terms) == 1:
        for rule in terms[0].match_expressions:
            if rule.operator == "In" and rule.key in labels:
                named.append(set(rule.values))
    admitted = set.intersection(*named) if named else set()
    return frozenset(admitted) if len(admitted) <= _MOST_MODELS else frozenset()
