"""The pods that ask for GPUs and have no node yet, by what they wait for."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Final

from gputile.api.core import Pod
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.request import RequestError, parse_request


class PendingReason(StrEnum):
    """What a pod waits for, in the words of the metric's label."""

    NO_GPU_FITS = "no_gpu_fits"
    INVALID_REQUEST = "invalid_request"
    GATED = "gated"
    NOT_PLACED = "not_placed"  # kube-scheduler has not asked yet, or lets it wait for something beside GPUs


_OF_EVENTS: Final = {
    "NoGPUFits": PendingReason.NO_GPU_FITS,
    "InvalidGPURequest": PendingReason.INVALID_REQUEST,
}


class PendingPods:
    """The pending GPU pods by UID. ``unit_mib`` and ``trust_group`` are those of the configuration."""

    def __init__(self, unit_mib: int, trust_group: Callable[[Pod], str]) -> None:
        self._unit_mib = unit_mib
        self._trust_group = trust_group
        self._reasons: dict[str, PendingReason] = {}

    def pod_applied(self, pod: Pod) -> None:
        """Take in a pod."""
        uid = pod.metadata.uid
        if pod.spec.node_name or pod.finished or is_placeholder(pod):
            self._reasons.pop(uid, None)
            return
        try:
            if parse_request(pod, self._unit_mib, self._trust_group) is None:
                return
        except RequestError:
            self._reasons[uid] = PendingReason.INVALID_REQUEST
            return
        before = self._reasons.get(uid, PendingReason.NOT_PLACED)
        if pod.spec.scheduling_gates:
            self._reasons[uid] = PendingReason.GATED
        else:
            self._reasons[uid] = PendingReason.NOT_PLACED if before is PendingReason.GATED else before

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod."""
        self._reasons.pop(uid, None)

    def pods_replaced(self, pods: Sequence[Pod], unreadable: Collection[str]) -> None:
        """Take in a complete list of pods; of those that cannot be read the last word stands."""
        there = {pod.metadata.uid for pod in pods}.union(unreadable)
        self._reasons = {uid: reason for uid, reason in self._reasons.items() if uid in there}
        for pod in pods:
            self.pod_applied(pod)

    def told(self, uid: str, event: str) -> None:
        """Take note that an event of this reason was recorded for a pod."""
        if uid in self._reasons and event in _OF_EVENTS:
            self._reasons[uid] = _OF_EVENTS[event]

    def counts(self) -> list[tuple[str, float]]:
        """Return how many wait for each reason, 0 for those that nobody waits for."""
        found = Counter(self._reasons.values())
        return [(reason.value, found[reason]) for reason in PendingReason]
