"""Counts the pods that ask for GPUs and have no node yet, by what they wait for."""

from collections import Counter
from collections.abc import Callable, KeysView
from enum import StrEnum
from typing import Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.request import RequestError, parse_request


class PendingReason(StrEnum):
    """What a pod waits for, in the words of the metric's label."""

    NO_GPU_FITS = "no_gpu_fits"
    INVALID_REQUEST = "invalid_request"
    GATED = "gated"
    NOT_PLACED = "not_placed"  # kube-scheduler has not asked yet, or lets it wait for something beside GPUs


_OF_EVENTS: Final = {
    EventReason.NO_GPU_FITS: PendingReason.NO_GPU_FITS,
    EventReason.INVALID_GPU_REQUEST: PendingReason.INVALID_REQUEST,
}


class PendingPods:
    """The pending GPU pods by UID. ``unit_mib`` and ``trust_group`` are those of the configuration.

    ``unix_time`` tells the time, in seconds: each pod is remembered with since when it has waited for its reason.
    """

    def __init__(self, unit_mib: int, trust_group: Callable[[Pod], str], unix_time: Callable[[], float]) -> None:
        self._unit_mib = unit_mib
        self._trust_group = trust_group
        self._unix_time = unix_time
        self._waits: dict[str, tuple[PendingReason, float]] = {}

    def pod_applied(self, pod: Pod) -> None:
        """Take in a pod."""
        uid = pod.metadata.uid
        if pod.spec.node_name or pod.finished or is_placeholder(pod):
            self._waits.pop(uid, None)
            return
        try:
            if parse_request(pod, self._unit_mib, self._trust_group) is None:
                return
        except RequestError:
            self._wait(uid, PendingReason.INVALID_REQUEST)
            return
        before, _ = self._waits.get(uid, (PendingReason.NOT_PLACED, 0.0))
        if pod.spec.scheduling_gates:
            self._wait(uid, PendingReason.GATED)
        else:
            self._wait(uid, PendingReason.NOT_PLACED if before is PendingReason.GATED else before)

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod."""
        self._waits.pop(uid, None)

    def uids(self) -> KeysView[str]:
        """Return the UIDs of these pods."""
        return self._waits.keys()

    def event_recorded(self, uid: str, event: EventReason) -> None:
        """Take note that an event of this reason was recorded for a pod."""
        if uid in self._waits and event in _OF_EVENTS:
            self._wait(uid, _OF_EVENTS[event])

    def counts(self) -> list[tuple[str, float]]:
        """Return how many wait for each reason, 0 for those that nobody waits for."""
        found = Counter(reason for reason, _ in self._waits.values())
        return [(reason.value, found[reason]) for reason in PendingReason]

    def since(self) -> list[tuple[str, float]]:
        """Return since when the pod has waited that has waited longest for each reason, Unix time; 0 where none has.

        What began while the clock was ahead begins now.
        """
        found: dict[PendingReason, float] = {}
        now = self._unix_time()
        self._waits = {uid: (reason, min(since, now)) for uid, (reason, since) in self._waits.items()}
        for reason, since in self._waits.values():
            found[reason] = min(since, found.get(reason, since))
        return [(reason.value, found.get(reason, 0.0)) for reason in PendingReason]

    def _wait(self, uid: str, reason: PendingReason) -> None:
        before = self._waits.get(uid)
        if before is None or before[0] is not reason:
            self._waits[uid] = (reason, self._unix_time())
