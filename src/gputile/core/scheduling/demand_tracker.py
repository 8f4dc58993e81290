"""Learns what pods ask for from those that ask a scheduler: the demand that packing is priced with."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from gputile.api.core import Pod
from gputile.api.well_known import LEGACY_MODEL_LABEL, MODEL_LABEL
from gputile.core.devices.request import Request, RequestKind
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.placement.packing.demand import DemandEstimator, generic
from gputile.core.placement.packing.prices import WHOLE_GPU, Demand

FIRST_DUE, GROWTH, MOST_BETWEEN = 25, 1.4, 500
"""Prices are due after 25 pods, then ever more seldom, at last every 500 pods."""
_SEEN = 65_536
_AT_ONCE = 500
_MOST_MODELS = 64  # that a pod names; more are nearly all that there are, and what is learnt is kept for long
_USUAL_MIB = 40_960
_USUAL_CPU = 16_000.0  # milli-CPU a GPU, in a cluster without any


class DemandTracker:
    """The demand that a ledger's scheduler has seen. Each pod counts once, however often it asks.

    It begins with the pods that hold GPUs already: when it is first asked, or piece by piece by ``catch_up`` where
    that comes ``later``.
    """

    def __init__(self, ledger: Ledger, *, later: bool = False) -> None:
        self._ledger = ledger
        self._later = later
        self._estimator: DemandEstimator | None = None
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._count, self._due = 0, FIRST_DUE
        self._middle_mib = _USUAL_MIB

    def observe(self, pod: Pod, request: Request | None) -> None:
        """Note that a pod asks for a place; ``request`` is None where it asks for no GPU."""
        if not self._new(pod.metadata.uid):
            return
        estimator = self._learning()
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
        """Return whether enough pods came since the last time for prices to be learnt anew."""
        if self._count < self._due:
            return False
        self._due = self._count + min(int(self._due * (GROWTH - 1)) + 1, MOST_BETWEEN)
        return True

    def demand(self) -> Demand:
        """Return the demand as it stands: before any pod came, a sensible prior."""
        self._middle_mib = _middle_gpu(self._ledger.node_arrays)
        return self._learning().demand()

    def _new(self, uid: str) -> bool:
        if uid in self._seen:
            return False
        self._seen[uid] = None
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return True

    def catch_up(self) -> Iterator[None]:
        """Learn from the pods that hold GPUs already, ``_AT_ONCE`` of them between two yields."""
        estimator = self._begun()
        for number, booking in enumerate(list(self._ledger.bookings())):
            if number % _AT_ONCE == 0:
                yield
            if booking.gpus and self._new(booking.uid):
                share = booking.gpus[0]
                milli = WHOLE_GPU if booking.whole else self._milli(share.mib, share.percent)
                host = booking.host
                estimator.observe(len(booking.gpus), milli, host.cpu, frozenset(), host.mib)

    def _learning(self) -> DemandEstimator:
        """Return the estimator; the first time it learns from the pods that hold GPUs already."""
        if self._estimator is None and not self._later:
            for _ in self.catch_up():
                pass
        return self._begun()

    def _begun(self) -> DemandEstimator:
        if self._estimator is None:
            arrays = self._ledger.node_arrays
            self._middle_mib = _middle_gpu(arrays)
            gpus = (arrays.total > 0).sum(axis=1)
            cpu = sum(node_info.host.cpu for row, node_info in self._ledger.nodes() if gpus[row])
            per_gpu = cpu / float(gpus.sum()) if gpus.any() else _USUAL_CPU
            self._estimator = DemandEstimator(generic(per_gpu, max(1, int(gpus.max(initial=1)))))
        return self._estimator

    def _milli(self, mib: int, percent: int) -> int:
        """Return a request in thousandths of the cluster's middle GPU."""
        memory = -(-mib * WHOLE_GPU // self._middle_mib)
        return min(max(memory, percent * WHOLE_GPU // 100, 1), WHOLE_GPU)


def _middle_gpu(arrays: NodeArrays) -> int:
    """Return the MiB of the cluster's middle GPU."""
    sizes = arrays.total[arrays.usable]
    return max(1, int(np.median(sizes))) if len(sizes) else _USUAL_MIB


def wanted_models(pod: Pod) -> frozenset[str]:
    """Return the GPU models that a pod's selector and required affinity admit; empty for any, and for very many."""
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
