"""Keeps the pods that a node may be nominated for, in the order in which kube-scheduler takes them.

No I/O, no clock.
"""

import heapq
from collections.abc import Collection, Set

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import POD_SCHEDULED, SCHEDULING_GATED, Pod
from gputile.controlplane.controller.cluster_state import version_of
from gputile.core.admission.completion import DEFAULT_SCHEDULER
from gputile.core.admission.gpu_requests import is_decided
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.reservation import reservation_of

_SPARE = 64  # entries of pods that wait no longer, beside as many as there are pods
_Key = tuple[int, str, int, str]  # priority from the highest on, creation, version, UID


def is_refused(pod: Pod) -> bool:
    """Return whether kube-scheduler looked at the pod and found no node: preemption and requeueing are its way then."""
    return any(
        condition.type == POD_SCHEDULED and condition.status == "False" and condition.reason != SCHEDULING_GATED
        for condition in pod.status.conditions
    )


def is_over(pod: Pod) -> bool:
    """Return whether a nomination means nothing for the pod any more: it is bound, finished or about to go."""
    return bool(pod.spec.node_name) or pod.finished or pod.metadata.deletion_timestamp is not None


def served_schedulers(configuration: Configuration) -> frozenset[str]:
    """Return the names of the schedulers that ask the extender, as far as the configuration tells."""
    return frozenset({"", DEFAULT_SCHEDULER, configuration.scheduler_name})


def may_be_nominated(pod: Pod, schedulers: Collection[str]) -> bool:
    """Return whether a node may be nominated for the pod.

    The pods of gangs have reservations. Where a pod's volumes and claimed devices can be, kube-scheduler alone knows.
    """
    spec = pod.spec
    waits = not is_over(pod) and not spec.scheduling_gates and not is_refused(pod)
    alone = gang_of(pod) is None and reservation_of(pod) is None and not is_placeholder(pod)
    return waits and alone and spec.scheduler_name in schedulers and not spec.claims and is_decided(pod)


class NominablePods:
    """The pods that wait for a nomination, by UID; each is given out once, the one of highest priority first.

    What is kept is bounded by about twice the pods that wait: entries of others are swept away then.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._heap: list[_Key] = []

    def __len__(self) -> int:
        """Return how many pods wait."""
        return len(self._pods)

    @property
    def uids(self) -> Set[str]:
        """The UIDs of the pods that wait."""
        return self._pods.keys()

    def put(self, pod: Pod) -> None:
        """Have a pod wait, or wait as it is now."""
        uid = pod.metadata.uid
        if uid not in self._pods:
            heapq.heappush(self._heap, _key(pod))
        self._pods[uid] = pod
        if len(self._heap) > 2 * len(self._pods) + _SPARE:
            self._heap = list({key[-1]: key for key in self._heap if key[-1] in self._pods}.values())
            heapq.heapify(self._heap)

    def drop(self, uid: str) -> None:
        """Have a pod wait no longer."""
        if self._pods.pop(uid, None) is not None and not self._pods:
            self._heap.clear()

    def take(self) -> Pod | None:
        """Return the next pod, which waits no longer; None where none waits."""
        while self._heap:
            *_, uid = heapq.heappop(self._heap)
            if (pod := self._pods.pop(uid, None)) is not None:
                return pod
        return None


def _key(pod: Pod) -> _Key:
    """Return the pod's place in line. Of pods of one second, kube-scheduler sees the one of the lower version first."""
    meta = pod.metadata
    return -(pod.spec.priority or 0), meta.creation_timestamp or "", version_of(pod), meta.uid
